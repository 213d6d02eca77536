// Draws every figure in the colours of the reader's theme, and lets the check boxes show and hide traces.
const figures = __FIGURES__;
const config = __CONFIG__;
const dark = matchMedia("(prefers-color-scheme: dark)");

function themed(layout) {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const result = {
    ...layout,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: style.fontFamily, size: 12, color: color("--quiet") },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: color("--faint"), activecolor: color("--ink") },
    hoverlabel: { bgcolor: color("--card"), bordercolor: color("--line"), font: { color: color("--ink") } },
  };
  for (const key of Object.keys(layout).filter((name) => /^[xy]axis/.test(name))) {
    const title = { ...layout[key].title, standoff: 8, font: { size: 12 } };
    result[key] = { ...layout[key], title, gridcolor: color("--line"), linecolor: color("--line") };
  }
  return result;
}

// At once, before the next paint: Plotly's own `responsive` waits a tenth of a second, too long for a page that is printed.
const widths = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (target.clientWidth !== target._fullLayout.width) Plotly.relayout(target, { autosize: true });
  }
});
for (const [key, figure] of Object.entries(figures)) {
  Plotly.newPlot(key, figure.data, themed(structuredClone(figure.layout)), config);
  widths.observe(document.getElementById(key));
}
dark.addEventListener("change", () => {
  for (const [key, figure] of Object.entries(figures)) Plotly.relayout(key, themed(structuredClone(figure.layout)));
});
document.addEventListener("change", (event) => {
  const box = event.target;
  if (!box.dataset.chart) return;
  Plotly.restyle(box.dataset.chart, { visible: box.checked }, box.dataset.traces.split(",").map(Number));
});
