"use strict";
(function () {
  if (!window.EventSource || !document.querySelector("[data-shape]")) return;

  // Only texts change while the elements stay, so that nothing moves and the focus remains.
  function show(texts) {
    document.querySelectorAll("[data-live]").forEach(function (element) {
      var text = texts[element.getAttribute("data-live")];
      if (text === undefined) return;
      if (element.tagName === "PROGRESS") { if (element.value !== Number(text)) element.value = Number(text); }
      else if (element.textContent !== text) element.textContent = text;
    });
  }

  // What an element is again on a page that was loaded again.
  function mark(element) {
    return element && (element.getAttribute("href") || element.getAttribute("name") || element.getAttribute("aria-label"));
  }

  // Other elements: the page as the server has it now, with the focus where it was.
  var loading = false;
  function load() {
    if (loading) return;
    loading = true;
    fetch(location.pathname + location.search, { credentials: "same-origin" }).then(function (response) {
      if (!response.ok || response.redirected) { location.reload(); return null; }
      return response.text();
    }).then(function (html) {
      if (html === null) return;
      var fresh = new DOMParser().parseFromString(html, "text/html").querySelector("[data-shape]");
      var old = document.querySelector("[data-shape]");
      if (!fresh || !old) { location.reload(); return; } // it has ended
      var focus = mark(document.activeElement);
      old.replaceWith(document.adoptNode(fresh));
      if (focus) fresh.querySelectorAll("a, select, button, [tabindex]").forEach(function (one) { if (mark(one) === focus) one.focus(); });
      follow();
    }).catch(function () { return null; }).then(function () { loading = false; });
  }

  // The page names its events: those of a run's page hold the log that it shows.
  var events = null, address = "";
  function follow() {
    var wanted = document.querySelector("[data-shape]").getAttribute("data-events") || "/events";
    if (wanted === address) return;
    if (events) events.close();
    address = wanted;
    events = new EventSource(wanted);
    events.addEventListener("texts", function (event) { show(JSON.parse(event.data)); });
    events.addEventListener("shapes", function (event) {
      var own = document.querySelector("[data-shape]");
      if (JSON.parse(event.data)[own.getAttribute("data-of")] !== own.getAttribute("data-shape")) load();
    });
  }
  follow();
  addEventListener("pagehide", function () { events.close(); });
})();
