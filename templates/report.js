"use strict";
(function () {
  var root = document.documentElement;
  root.classList.add("scripted");

  // The switch works without scripts; here its choice is remembered where the browser allows that.
  var key = "validator-theme";
  var switches = document.querySelectorAll("input[name=theme]");
  var kept = null;
  try { kept = localStorage.getItem(key); } catch (error) { kept = null; }
  switches.forEach(function (input) {
    if (input.value === kept) input.checked = true;
    input.addEventListener("change", function () {
      try { localStorage.setItem(key, input.value); } catch (error) { kept = null; }
    });
  });

  // A button beside each command copies it; a browser that forbids it gets the text selected instead.
  document.querySelectorAll("figure.code").forEach(function (figure) {
    var button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.setAttribute("aria-label", "Copy " + figure.getAttribute("data-name"));
    button.addEventListener("click", function () {
      var code = figure.querySelector("code");
      var done = function () {
        button.textContent = "Copied";
        setTimeout(function () { button.textContent = "Copy"; }, 1600);
      };
      var select = function () {
        getSelection().selectAllChildren(code);
        button.textContent = "Selected";
      };
      if (navigator.clipboard) navigator.clipboard.writeText(code.textContent).then(done, select);
      else select();
    });
    figure.appendChild(button);
  });

  // A link into a folded part opens it, and printing opens all.
  function reveal() {
    var target = location.hash.length > 1 ? document.getElementById(decodeURIComponent(location.hash.slice(1).split("!")[0])) : null;
    for (var node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
    if (target) target.scrollIntoView();
  }
  addEventListener("hashchange", reveal);
  reveal();
  var folded = [];
  addEventListener("beforeprint", function () {
    folded = Array.prototype.filter.call(document.querySelectorAll("details.print"), function (d) { return !d.open; });
    folded.forEach(function (d) { d.open = true; });
  });
  addEventListener("afterprint", function () { folded.forEach(function (d) { d.open = false; }); });
})();
