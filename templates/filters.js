"use strict";
(function () {
  // Filters by status: the selection follows a ! in the address, so that a filtered page can be linked to.
  var groups = [
    { key: "phases", heading: "phases", items: "section.phase", name: "Show phases" },
    { key: "findings", heading: "findings", items: "article.finding", name: "Show findings" }
  ];

  function state() {
    var parts = location.hash.slice(1).split("!");
    var found = { anchor: parts[0] };
    (parts[1] || "").split("&").forEach(function (pair) {
      var at = pair.indexOf("=");
      if (at > 0) found[pair.slice(0, at)] = decodeURIComponent(pair.slice(at + 1)).split(",");
    });
    return found;
  }

  function remember() {
    var filters = groups.map(function (group) {
      var chosen = pressed(group);
      return chosen.length ? group.key + "=" + chosen.map(encodeURIComponent).join(",") : "";
    }).filter(Boolean).join("&");
    history.replaceState(null, "", "#" + state().anchor + (filters ? "!" + filters : ""));
  }

  function pressed(group) {
    return group.buttons.filter(function (button) { return button.getAttribute("aria-pressed") === "true"; })
      .map(function (button) { return button.value; });
  }

  function apply(group) {
    var chosen = pressed(group), shown = 0;
    group.elements.forEach(function (element) {
      var hide = chosen.length > 0 && chosen.indexOf(element.getAttribute("data-status")) < 0;
      element.hidden = hide;
      if (!hide) shown += 1;
    });
    group.count.textContent = chosen.length ? shown + " of " + group.elements.length + " shown" : "";
  }

  groups = groups.filter(function (group) {
    group.elements = Array.prototype.slice.call(document.querySelectorAll(group.items));
    var counts = {};
    group.elements.forEach(function (element) {
      var status = element.getAttribute("data-status");
      counts[status] = (counts[status] || 0) + 1;
    });
    var statuses = Object.keys(counts), heading = document.getElementById(group.heading);
    if (statuses.length < 2 || !heading) return false;
    var bar = document.createElement("div");
    bar.className = "filters";
    bar.setAttribute("role", "group");
    bar.setAttribute("aria-label", group.name);
    group.count = document.createElement("span");
    group.count.setAttribute("role", "status");
    group.buttons = statuses.map(function (status) {
      var button = document.createElement("button");
      button.type = "button";
      button.value = status;
      button.textContent = status + " " + counts[status];
      button.setAttribute("aria-pressed", "false");
      button.addEventListener("click", function () {
        button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") === "true" ? "false" : "true");
        apply(group);
        remember();
      });
      bar.appendChild(button);
      return button;
    });
    bar.appendChild(group.count);
    heading.after(bar);
    return true;
  });

  function restore() {
    var now = state(), target = document.getElementById(now.anchor);
    groups.forEach(function (group) {
      var wanted = now[group.key] || [];
      group.buttons.forEach(function (button) {
        button.setAttribute("aria-pressed", wanted.indexOf(button.value) < 0 ? "false" : "true");
      });
      apply(group);
      // A link into something that is filtered out shows it again: the reader asked for it last.
      if (target && target.closest("[hidden]")) {
        group.buttons.forEach(function (button) { button.setAttribute("aria-pressed", "false"); });
        apply(group);
      }
    });
    if (target) target.scrollIntoView();
  }

  addEventListener("hashchange", restore);
  restore();
})();
