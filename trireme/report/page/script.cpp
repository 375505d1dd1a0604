// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/page/assets.h>

namespace trireme::report {

namespace {

constexpr std::string_view kScript = R"js("use strict";
(() => {
  const run = JSON.parse(document.getElementById("run").textContent);
  const shown = (value) => {
    if (value === null) return "–";
    const is_tiny = value !== 0 && Math.abs(value) < 1e-3;
    return is_tiny ? value.toExponential(3) : value.toLocaleString("en", {maximumSignificantDigits: 4});
  };
  const element = (name, text, style) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (style) made.className = style;
    return made;
  };
  const sample = (style, stacked) => {
    const space = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(space, "svg");
    svg.setAttribute("viewBox", "0 0 24 10");
    const path = document.createElementNS(space, "path");
    path.setAttribute("class", (stacked ? "area " : "line ") + style);
    path.setAttribute("d", stacked ? "M2 1H22V9H2Z" : "M0 5H24");
    svg.append(path);
    return svg;
  };
  const hidden = new Set();

  for (const figure of document.querySelectorAll("figure.chart")) {
    const data = JSON.parse(figure.querySelector("script").textContent);
    const plot = figure.querySelector(".plot");
    const cursor = figure.querySelector(".cursor");
    const readout = figure.querySelector(".readout");
    let at = -1;

    const row = (series) => {
      const line = element("div");
      const low = series.low ? series.low[at] : null;
      const high = series.high ? series.high[at] : null;
      line.append(sample(series.style, data.stacked), element("span", series.name), element("b", shown(series.mean[at])));
      if (low !== null && low !== high) line.append(element("i", shown(low) + " to " + shown(high)));
      return line;
    };
    const show = (index) => {
      at = Math.max(0, Math.min(data.x.length - 1, index));
      const step = data.x[at];
      const place = data.to > data.from ? (step - data.from) / (data.to - data.from) : 0.5;
      const epoch = run.epochs.find(([last]) => step <= last);
      const rows = data.series.filter((series) => !hidden.has(series.name) && series.mean[at] !== null).map(row);
      if (data.stacked) {
        rows.reverse();
        const sum = data.series.reduce((all, series) => all + (series.mean[at] ?? 0), 0);
        rows.unshift(element("div", "together " + shown(sum)));
      }
      readout.replaceChildren(
          element("div", "step " + step.toLocaleString("en") + (epoch ? ", epoch " + epoch[1] : ""), "soft"), ...rows);
      cursor.style.left = 100 * place + "%";
      readout.hidden = cursor.hidden = false;
      readout.style.left = readout.style.right = "auto";
      const width = plot.clientWidth;
      const beside = place < 0.5 ? place * width + 10 : place * width - 10 - readout.offsetWidth;
      readout.style.left = Math.max(0, Math.min(width - readout.offsetWidth, beside)) + "px";
    };
    const hide = () => {
      readout.hidden = cursor.hidden = true;
      at = -1;
    };
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      const step = data.from + (event.clientX - box.left) / box.width * (data.to - data.from);
      let nearest = 0;
      data.x.forEach((x, index) => {
        if (Math.abs(x - step) < Math.abs(data.x[nearest] - step)) nearest = index;
      });
      show(nearest);
    });
    plot.addEventListener("pointerleave", hide);
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      if (event.key === "ArrowRight") show(at + 1);
      else if (event.key === "ArrowLeft") show(at < 0 ? data.x.length - 1 : at - 1);
      else if (event.key === "Escape") hide();
      else return;
      event.preventDefault();
    });
  }

  // Exponential moving averages, each divided by the sum of its weights.
  const smoothed = (values, weight) => {
    let sum = 0, weights = 0;
    return values.map((value) => {
      if (value === null) return null;
      sum = weight * sum + (1 - weight) * value;
      weights = weight * weights + (1 - weight);
      return sum / weights;
    });
  };
  const lines = [];
  for (const figure of document.querySelectorAll("figure.chart")) {
    const data = JSON.parse(figure.querySelector("script").textContent);
    if (data.stacked) continue;
    for (const path of figure.querySelectorAll("path.line[data-series]")) {
      const series = data.series.find((each) => each.name === path.dataset.series);
      if (series) lines.push({data, series, path, drawn: path.getAttribute("d")});
    }
  }
  const smoothing = document.querySelector(".smoothing");
  if (smoothing && lines.length > 0) {
    smoothing.hidden = false;
    const slider = smoothing.querySelector("input");
    slider.addEventListener("input", () => {
      const weight = Number(slider.value);
      smoothing.querySelector("output").textContent = weight > 0 ? weight.toFixed(2) : "off";
      for (const {data, series, path, drawn} of lines) {
        if (weight === 0) {
          path.setAttribute("d", drawn);
          continue;
        }
        const scale = data.log ? Math.log : (value) => value;
        const height = (value) => (scale(value) - scale(data.low)) / (scale(data.high) - scale(data.low));
        const width = data.to > data.from ? data.to - data.from : 1;
        const points = [];
        smoothed(series.mean, weight).forEach((value, index) => {
          if (value === null) return;
          const x = 1000 * (data.x[index] - data.from) / width;
          points.push(x.toFixed(1) + " " + (300 - 300 * height(value)).toFixed(1));
        });
        path.setAttribute("d", "M" + points.join("L"));
      }
    });
  }

  for (const button of document.querySelectorAll("[data-toggle]")) {
    button.addEventListener("click", () => {
      const name = button.dataset.toggle;
      if (!hidden.delete(name)) hidden.add(name);
      for (const other of document.querySelectorAll("[data-toggle]")) {
        if (other.dataset.toggle === name) other.setAttribute("aria-pressed", String(!hidden.has(name)));
      }
      for (const path of document.querySelectorAll("path[data-series]")) {
        if (path.dataset.series === name && !path.classList.contains("area")) path.classList.toggle("off", hidden.has(name));
      }
    });
  }
})();
)js";

}  // namespace

std::string_view page_script() { return kScript; }

}  // namespace trireme::report
