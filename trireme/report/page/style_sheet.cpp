// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/page/assets.h>

namespace trireme::report {

namespace {

constexpr std::string_view kStyleSheet = R"css(:root {
  color-scheme: light dark;
  --back: #f4f5f7; --card: #ffffff; --text: #1b1f24; --soft: #5b6470; --edge: #d9dde3; --grid: #e6e9ed;
  --good: #00694d; --bad: #b3261e; --warn: #8a5300;
  --c0: #00639f; --c1: #c04f00; --c2: #00946a; --c3: #cf6fb0; --c4: #e0a31a; --c5: #56b4e9; --c6: #3c4047;
  --p0: #e69f00; --p1: #56b4e9; --p2: #0072b2; --p3: #d55e00; --p4: #009e73; --p5: #cc79a7; --p6: #b4bac2;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --back: #14171b; --card: #1d2126; --text: #e7eaee; --soft: #a3acb8; --edge: #343a42; --grid: #2b3037;
    --good: #4fd0a5; --bad: #ff8a80; --warn: #f2b84b;
    --c0: #4ba6e8; --c1: #f5803e; --c2: #2cc79b; --c3: #e093c6; --c4: #f0b429; --c5: #a9dcff; --c6: #d9dde3;
    --p0: #d99a10; --p1: #6cc1f2; --p2: #2f86c9; --p3: #e2702a; --p4: #1fae86; --p5: #cf86b2; --p6: #6c7480;
  }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 20px 16px 40px; max-width: 1500px; background: var(--back); color: var(--text);
  font: 14px/1.45 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { margin: 0; font-size: 22px; overflow-wrap: anywhere; }
h2 { margin: 32px 0 12px; font-size: 16px; }
p { margin: 4px 0 0; }
small, .soft { color: var(--soft); font-size: 12px; font-weight: normal; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(126px, 1fr)); gap: 10px; margin: 16px 0 0; }
.tile, .chart, .card { background: var(--card); border: 1px solid var(--edge); border-radius: 8px; }
.tile { padding: 10px 12px; }
.tile b { display: block; font-size: 19px; line-height: 1.3; font-weight: 600; overflow-wrap: anywhere; }
.tile span { color: var(--soft); font-size: 12px; }
.good { color: var(--good); } .bad { color: var(--bad); } .warn { color: var(--warn); }
.card { padding: 12px 14px; margin: 12px 0 0; }
.notes { border-left: 4px solid var(--warn); } .failure { border-left: 4px solid var(--bad); }
.notes ul { margin: 4px 0 0; padding-left: 20px; }
pre { margin: 8px 0 0; font: 12px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 12px; }
.charts.small { grid-template-columns: repeat(auto-fit, minmax(min(100%, 330px), 1fr)); }
.chart { margin: 0; padding: 12px 14px 8px; min-width: 0; break-inside: avoid; }
.picture { margin: 0 0 12px; } .picture img { display: block; margin: 8px 0 0; }
figcaption { font-weight: 600; }
figcaption .unit { font-weight: normal; }
sup { font-size: 75%; line-height: 0; }
.legend { display: flex; flex-wrap: wrap; gap: 0 4px; margin: 4px 0 0 -6px; max-height: 92px; overflow: auto; }
.legend button { display: inline-flex; align-items: center; gap: 6px; padding: 2px 6px; border: 0; border-radius: 4px;
  background: none; color: var(--text); font: inherit; font-size: 12px; cursor: pointer; }
.legend button:hover { background: var(--grid); }
.legend button[aria-pressed="false"] { opacity: 0.4; text-decoration: line-through; }
.legend svg { width: 24px; height: 10px; }
.smoothing { display: inline-flex; align-items: center; gap: 8px; margin: 0 0 8px; }
.shared { position: sticky; top: 0; z-index: 3; padding: 2px 0 6px; background: var(--back); }
.frame { display: grid; grid-template: 200px 20px auto / 58px minmax(0, 1fr); margin: 8px 12px 0 0; }
.small .frame { grid-template-rows: 150px 20px auto; }
.ys, .xs { position: relative; color: var(--soft); font-size: 11px; font-variant-numeric: tabular-nums; }
.ys span { position: absolute; right: 8px; transform: translateY(50%); white-space: nowrap; line-height: 1; }
.xs { grid-column: 2; }
.xs span { position: absolute; top: 4px; transform: translateX(-50%); white-space: nowrap; }
.xname { grid-column: 2; color: var(--soft); font-size: 11px; text-align: center; }
.plot { position: relative; outline-offset: 2px; touch-action: pan-y; }
.plot > svg { position: absolute; inset: 0; width: 100%; height: 100%; overflow: visible; }
path { vector-effect: non-scaling-stroke; fill: none; stroke-width: 1.6px; stroke-linejoin: round; }
.grid { stroke: var(--grid); stroke-width: 1px; }
.event { stroke: var(--soft); stroke-width: 1px; stroke-dasharray: 2 3; }
.event.failed { stroke: var(--bad); stroke-width: 1.5px; stroke-dasharray: 5 3; }
.mark { stroke-width: 6px; stroke-linecap: round; }
.band { stroke: none; opacity: 0.22; }
.area { stroke: none; }
.plain { stroke: var(--c0); } .band.plain { fill: var(--c0); }
.c0 { stroke: var(--c0); } .c1 { stroke: var(--c1); } .c2 { stroke: var(--c2); } .c3 { stroke: var(--c3); }
.c4 { stroke: var(--c4); } .c5 { stroke: var(--c5); } .c6 { stroke: var(--c6); }
.band.c0 { fill: var(--c0); } .band.c1 { fill: var(--c1); } .band.c2 { fill: var(--c2); } .band.c3 { fill: var(--c3); }
.band.c4 { fill: var(--c4); } .band.c5 { fill: var(--c5); } .band.c6 { fill: var(--c6); }
.line.d1 { stroke-dasharray: 7 3; } .line.d2 { stroke-dasharray: 2 2.5; } .line.d3 { stroke-dasharray: 8 3 2 3; }
.band, .band[class] { stroke: none; }
.p0 { fill: var(--p0); background: var(--p0); } .p1 { fill: var(--p1); background: var(--p1); }
.p2 { fill: var(--p2); background: var(--p2); } .p3 { fill: var(--p3); background: var(--p3); }
.p4 { fill: var(--p4); background: var(--p4); } .p5 { fill: var(--p5); background: var(--p5); }
.p6 { fill: var(--p6); background: var(--p6); }
.off { display: none; }
.cursor { position: absolute; top: 0; bottom: 0; width: 1px; background: var(--soft); pointer-events: none; }
.readout { position: absolute; top: 4px; z-index: 2; padding: 6px 9px; border: 1px solid var(--edge); border-radius: 6px;
  background: var(--card); font-size: 12px; line-height: 1.4; pointer-events: none; white-space: nowrap;
  box-shadow: 0 2px 8px rgb(0 0 0 / 18%); font-variant-numeric: tabular-nums; }
.readout div { display: flex; align-items: center; gap: 6px; }
.readout svg { width: 18px; height: 10px; flex: none; }
.readout b { font-weight: 600; } .readout i { font-style: normal; color: var(--soft); }
[hidden] { display: none !important; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 10px 4px 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--grid);
  font-weight: normal; }
tr:last-child > * { border-bottom: 0; }
thead th, .pairs th { color: var(--soft); }
.pairs th { width: 1%; white-space: nowrap; padding-right: 20px; }
.pairs td { overflow-wrap: anywhere; white-space: pre-wrap; }
td.code { font: 12px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
td.n, th.n { text-align: right; white-space: nowrap; }
.bar { display: flex; width: 100%; min-width: 160px; height: 14px; margin-top: 3px; border-radius: 3px; overflow: hidden; }
.bar span { display: block; height: 100%; }
.chip { display: inline-block; width: 10px; height: 10px; margin-right: 5px; border-radius: 2px; }
.bar, .tile, .chart, .legend svg { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.columns { columns: 2 480px; column-gap: 12px; }
.columns .card { margin: 0 0 12px; break-inside: avoid; }
p.phases { display: flex; flex-wrap: wrap; gap: 2px 16px; margin: 0 0 8px; font-size: 12px; }
summary { cursor: pointer; font-weight: 600; }
footer { margin-top: 28px; color: var(--soft); font-size: 12px; }
@media print {
  body { background: none; padding: 0; max-width: none; font-size: 11px; }
  .charts { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .columns { columns: 2; }
  .frame { grid-template-rows: 150px 20px auto; }
  .card, .tile { break-inside: avoid; }
  .picture img { max-width: 100%; height: auto; }
  .tiles { grid-template-columns: repeat(5, 1fr); }
  .cursor, .readout { display: none !important; }
  .shared { position: static; }
}
)css";

}  // namespace

std::string_view style_sheet() { return kStyleSheet; }

}  // namespace trireme::report
