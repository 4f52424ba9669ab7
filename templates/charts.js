"use strict";
(function () {
  // Reading values off a chart, and zooming into its steps. The drawing is complete without: this moves what it holds.
  var SVG = "http://www.w3.org/2000/svg";

  function make(name, attributes, parent) {
    var element = document.createElementNS(SVG, name);
    for (var key in attributes) element.setAttribute(key, attributes[key]);
    if (parent) parent.appendChild(element);
    return element;
  }

  // A path of M and l with numbers only, as points [x, y].
  function points(path) {
    var found = [], x = 0, y = 0;
    path.getAttribute("d").replace(/([Ml])([^Ml]*)/g, function (all, letter, rest) {
      var numbers = rest.match(/-?(?:\d+\.?\d*|\.\d+)/g) || [];
      for (var i = 0; i + 1 < numbers.length; i += 2) {
        x = letter === "M" ? +numbers[i] : x + +numbers[i];
        y = letter === "M" ? +numbers[i + 1] : y + +numbers[i + 1];
        found.push([x, y]);
      }
    });
    return found;
  }

  function extent(lines, axis) {
    var all = [].concat.apply([], lines).map(function (point) { return point[axis]; });
    return [Math.min.apply(null, all), Math.max.apply(null, all)];
  }

  // At most four significant digits, whole numbers in full: as format_number of validator/text.py writes them.
  function number(value) {
    var size = Math.abs(value);
    if (size >= 1e9 || (size > 0 && size < 1e-4)) return value.toExponential(3).replace(/\.?0*e/, "e");
    var digits = size % 1 === 0 ? 0 : Math.max(0, 3 - Math.floor(Math.log10(size)));
    return (+value.toFixed(digits) || 0).toLocaleString("en-US", { maximumFractionDigits: digits });
  }

  // Round steps between two ends, about count of them.
  function ticks(from, to, count) {
    var raw = (to - from) / count, power = Math.pow(10, Math.floor(Math.log10(raw)));
    var step = [1, 2, 5, 10].map(function (m) { return m * power; }).find(function (s) { return s >= raw; });
    step = Math.max(1, Math.round(step));
    var found = [];
    for (var at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
    return found;
  }

  var HINT = "Move over the chart to read it, drag to zoom; or focus it and use ← → + − and Escape.";

  // What a reader meets before using a chart. The rest is made when the chart comes near, for most are never reached.
  function introduce(figure) {
    var drawing = figure.querySelector(".drawing"), readout = document.createElement("p");
    readout.className = "readout";
    readout.setAttribute("role", "status");
    readout.textContent = HINT;
    drawing.tabIndex = 0;
    drawing.setAttribute("role", "group");
    drawing.setAttribute("aria-label", figure.querySelector("h4").textContent.trim() + ": arrow keys read values, + and − zoom");
    drawing.after(readout);
    drawing.addEventListener("focus", function () { prepare(figure); });
  }

  function prepare(figure) {
    if (near) near.unobserve(figure);
    if (figure.hasAttribute("data-prepared")) return;
    figure.setAttribute("data-prepared", "");
    if (enhance(figure)) return;
    var drawing = figure.querySelector(".drawing");
    figure.querySelector(".readout").remove();
    ["tabindex", "role", "aria-label"].forEach(function (name) { drawing.removeAttribute(name); });
  }

  // False where the drawing is not one whose values can be read.
  function enhance(figure) {
    var chart = JSON.parse(figure.getAttribute("data-readout"));
    var svg = figure.querySelector("svg"), axis = svg && svg.querySelector(".x-axis");
    var marks = svg ? Array.prototype.slice.call(svg.querySelectorAll(".marks")) : [];
    var clipped = marks.filter(function (group) { return group.closest("[clip-path]") || group.hasAttribute("clip-path"); });
    var paths = [].concat.apply([], clipped.map(function (group) {
      return Array.prototype.slice.call(group.querySelectorAll("path[stroke]"));
    }));
    var lines = paths.map(points).filter(function (line) { return line.length > 1; });
    if (!axis || lines.length !== chart.lines.length) return false;

    var plot = svg.querySelector("path[d^='M0,0h']");
    var box = /M0,0h([\d.]+)v([\d.]+)/.exec(plot.getAttribute("d"));
    var width = +box[1], height = +box[2];
    var px = extent(lines, 0), py = extent(lines, 1);
    var view = [0, width];
    function stepAt(x) { return chart.x[0] + (x - px[0]) / (px[1] - px[0]) * (chart.x[1] - chart.x[0]); }
    function xOf(step) { return px[0] + (step - chart.x[0]) / (chart.x[1] - chart.x[0]) * (px[1] - px[0]); }
    function valueAt(y) { return chart.y[1] - (y - py[0]) / (py[1] - py[0]) * (chart.y[1] - chart.y[0]); }
    function shown(x) { return (x - view[0]) / (view[1] - view[0]) * width; }

    var layer = make("g", { "class": "reading-layer" }, plot.parentNode);
    var shade = make("rect", { "class": "zoom-box", y: 0, height: height, width: 0, visibility: "hidden" }, layer);
    var cursor = make("line", { "class": "cursor", y1: 0, y2: height, visibility: "hidden" }, layer);
    var surface = make("rect", { "class": "surface", width: width, height: height }, layer);
    var readout = figure.querySelector(".readout"), drawing = figure.querySelector(".drawing");
    var reset = document.createElement("button");
    reset.type = "button";
    reset.className = "copy reset";
    reset.textContent = "Whole run";
    reset.hidden = true;
    figure.appendChild(reset);

    function nearest(line, x) {
      var low = 0, high = line.length - 1;
      while (low < high) {
        var middle = (low + high) >> 1;
        if (line[middle][0] < x) low = middle + 1; else high = middle;
      }
      return low > 0 && x - line[low - 1][0] < line[low][0] - x ? line[low - 1] : line[low];
    }

    var at = null;
    function read(x) {
      at = Math.min(view[1], Math.max(view[0], x));
      var first = nearest(lines[0], at);
      at = first[0];
      var where = shown(at);
      cursor.setAttribute("x1", where);
      cursor.setAttribute("x2", where);
      cursor.setAttribute("visibility", "visible");
      var values = lines.slice(0, 6).map(function (line, index) {
        return chart.lines[index] + " " + number(valueAt(nearest(line, at)[1]));
      });
      if (lines.length > 6) values.push("and " + (lines.length - 6) + " more");
      readout.textContent = (chart.over || "Step") + " " + Math.round(stepAt(at)).toLocaleString("en-US") + ": " + values.join(", ") +
        (chart.unit ? " " + chart.unit : "");
    }
    function leave() {
      cursor.setAttribute("visibility", "hidden");
      readout.textContent = HINT;
      at = null;
    }

    // What lies over the steps is scaled in x; the axis gets ticks of its own while zoomed.
    var moved = marks.filter(function (group) {
      return !axis.contains(group) && !group.querySelector("text") && !isBound(group);
    });
    function isBound(group) {
      var line = group.querySelector("line");
      return line !== null && Math.abs(+line.getAttribute("x2") || 0) > width - 2;
    }
    var originals = Array.prototype.slice.call(axis.querySelectorAll("text[transform], line[y2='4'], line[y2='5']"))
      .filter(function (element) { return element.tagName === "line" || /,15\)/.test(element.getAttribute("transform")); });
    var label = originals.find(function (element) { return element.tagName === "text"; });
    var own = make("g", {}, axis.firstElementChild || axis);
    var clip = (svg.querySelector("[clip-path]") || svg).getAttribute("clip-path");

    function zoom(from, to) {
      var least = 4 * width / Math.max(4, lines[0].length);
      if (to - from < least) return;
      view = [Math.max(0, from), Math.min(width, to)];
      var scale = width / (view[1] - view[0]), whole = scale < 1.0001;
      moved.forEach(function (group) {
        if (!group.parentNode.classList.contains("zoomed")) {
          var frame = make("g", { "class": "zoomed" });
          group.replaceWith(frame);
          frame.appendChild(group);
        }
        if (whole) {
          group.removeAttribute("transform");
          group.parentNode.removeAttribute("clip-path");
        } else {
          group.setAttribute("transform", "scale(" + scale + ",1) translate(" + -view[0] + ",0)");
          if (clip) group.parentNode.setAttribute("clip-path", clip);
        }
      });
      originals.forEach(function (element) { element.setAttribute("visibility", whole ? "visible" : "hidden"); });
      own.textContent = "";
      if (!whole) ticks(stepAt(view[0]), stepAt(view[1]), 8).forEach(function (step) {
        var x = shown(xOf(step));
        make("line", { x1: x, x2: x, y2: 4, stroke: "#9aa2af" }, own);
        var text = label.cloneNode(false);
        text.setAttribute("transform", "translate(" + x + ",15)");
        text.setAttribute("visibility", "visible");
        text.textContent = step.toLocaleString("en-US");
        own.appendChild(text);
      });
      reset.hidden = whole;
      if (at !== null) read(at);
    }

    function positionOf(event) {
      var matrix = plot.getScreenCTM().inverse(), point = svg.createSVGPoint();
      point.x = event.clientX;
      point.y = event.clientY;
      return view[0] + point.matrixTransform(matrix).x / width * (view[1] - view[0]);
    }
    var start = null;
    surface.addEventListener("pointerdown", function (event) {
      start = positionOf(event);
      surface.setPointerCapture(event.pointerId);
    });
    surface.addEventListener("pointermove", function (event) {
      var x = positionOf(event);
      read(x);
      if (start === null || Math.abs(x - start) < 3) return;
      var left = shown(Math.min(x, start)), right = shown(Math.max(x, start));
      shade.setAttribute("x", left);
      shade.setAttribute("width", right - left);
      shade.setAttribute("visibility", "visible");
    });
    surface.addEventListener("pointerup", function (event) {
      var x = positionOf(event);
      shade.setAttribute("visibility", "hidden");
      if (start !== null && Math.abs(shown(x) - shown(start)) > 5) zoom(Math.min(x, start), Math.max(x, start));
      start = null;
    });
    surface.addEventListener("pointerleave", function () { if (start === null) leave(); });
    surface.addEventListener("dblclick", function () { zoom(0, width); });
    reset.addEventListener("click", function () { zoom(0, width); });
    drawing.addEventListener("blur", leave);
    drawing.addEventListener("keydown", function (event) {
      var span = view[1] - view[0], middle = at === null ? (view[0] + view[1]) / 2 : at;
      if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
        var line = lines[0], here = line.indexOf(nearest(line, middle));
        var next = line[Math.min(line.length - 1, Math.max(0, here + (event.key === "ArrowRight" ? 1 : -1)))];
        if (next[0] < view[0] || next[0] > view[1]) {
          var shift = next[0] < view[0] ? -Math.min(span / 2, view[0]) : Math.min(span / 2, width - view[1]);
          zoom(view[0] + shift, view[1] + shift);
        }
        read(at === null ? middle : next[0]);
      } else if (event.key === "Home" || event.key === "End") read(event.key === "Home" ? view[0] : view[1]);
      else if (event.key === "+" || event.key === "=") zoom(middle - span / 4, middle + span / 4);
      else if (event.key === "-") zoom(Math.max(0, middle - span), Math.min(width, middle + span));
      else if (event.key === "Escape") zoom(0, width);
      else return;
      event.preventDefault();
    });
    return true;
  }

  // What the browser put off is drawn while there is nothing else to do, so that a picture of the whole page is whole.
  var later = window.requestIdleCallback || function (work) {
    setTimeout(function () { work({ timeRemaining: function () { return 0; } }); }, 50);
  };
  var waiting = Array.prototype.slice.call(document.querySelectorAll(".drawing > div"));
  function draw(idle) {
    do { if (waiting.length) waiting.shift().classList.add("drawn"); } while (waiting.length && idle.timeRemaining() > 8);
    if (waiting.length) later(draw);
  }
  addEventListener("load", function () { setTimeout(function () { later(draw); }, 100); });

  var figures = document.querySelectorAll("figure[data-readout]");
  var near = "IntersectionObserver" in window && new IntersectionObserver(function (entries) {
    entries.forEach(function (entry) { if (entry.isIntersecting) prepare(entry.target); });
  }, { rootMargin: "50%" });
  figures.forEach(function (figure) {
    introduce(figure);
    if (near) near.observe(figure);
    else prepare(figure);
  });
})();
