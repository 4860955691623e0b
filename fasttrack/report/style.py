"""How pages look: one style sheet for reports and for the index, light and dark, screen and paper.

Owns colours and layout. Colour never says anything alone: every state is also written out, and
marks of a plot differ in shape. Read by `page`.
"""

from __future__ import annotations

CSS = """\
:root {
  color-scheme: light dark;
  --bg: #f6f7f9; --card: #fff; --ink: #15191f; --soft: #55606e; --line: #d8dde4;
  --good: #12703f; --good-bg: #e2f4ea; --bad: #b01e1e; --bad-bg: #fde8e6;
  --open: #855500; --open-bg: #fcf0d3; --band: #8b97a833;
  --mono: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
}
@media (prefers-color-scheme: dark) {
  :root {
    --bg: #0f1318; --card: #171c23; --ink: #e7ebf0; --soft: #a0abb9; --line: #2d3641;
    --good: #6fd39b; --good-bg: #11301f; --bad: #ff9d93; --bad-bg: #421b19;
    --open: #efc25e; --open-bg: #382a0c; --band: #8b97a838;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; scroll-padding-top: 1rem; }
body {
  margin: 0; background: var(--bg); color: var(--ink); overflow-wrap: anywhere;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main { max-width: 68rem; margin: 0 auto; padding: 1.75rem 1rem 3rem; }
h1 {
  font-size: clamp(1.5rem, 1.1rem + 1.8vw, 2.1rem); line-height: 1.2; letter-spacing: -.015em;
  margin: .15rem 0 .8rem; text-wrap: balance;
}
h2 { font-size: 1.15rem; line-height: 1.3; margin: 0 0 .6rem; }
p { margin: 0 0 .7rem; max-width: 46rem; }
ul { margin: 0; padding-left: 1.15rem; }
li { margin: .2rem 0; }
a { color: inherit; text-underline-offset: .15em; }
:focus-visible { outline: 2px solid currentcolor; outline-offset: 2px; }
.soft { color: var(--soft); }
.brow { color: var(--soft); font-size: .85rem; letter-spacing: .02em; margin: 0; }
nav {
  display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; margin: 1.2rem .2rem 0; font-size: .92rem;
}
footer { margin-top: 1.5rem; color: var(--soft); font-size: .9rem; }

/* Cards */
section, details, .head > div {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 1.1rem 1.2rem; margin-top: 1rem; min-width: 0;
}
summary { cursor: pointer; font-weight: 650; font-size: 1.15rem; line-height: 1.3; }
details[open] > summary { margin-bottom: .6rem; }
summary span { color: var(--soft); font-weight: 400; font-size: .9rem; }
.head { display: grid; gap: 1rem; margin-top: 1.25rem; }
.head > div { margin: 0; }
.head .answer { border-left: 6px solid var(--open); }
.head .answer.good { border-left-color: var(--good); }
.head .answer.bad { border-left-color: var(--bad); }
.state { font-size: 1.7rem; line-height: 1.2; font-weight: 700; margin: 0 0 .5rem; }
.good .state { color: var(--good); }
.bad .state { color: var(--bad); }
.open .state { color: var(--open); }
.chip {
  display: inline-block; white-space: nowrap; border-radius: 5px; padding: .05rem .42rem;
  margin: 0 .3rem .1rem 0; color: var(--ink); background: var(--bg);
  font-size: .78rem; font-weight: 650; line-height: 1.5; letter-spacing: .02em;
}
.state .chip { font-size: .9rem; vertical-align: .28em; margin-left: .2rem; }
.chip.good { color: var(--good); background: var(--good-bg); }
.chip.bad { color: var(--bad); background: var(--bad-bg); }
.chip.open { color: var(--open); background: var(--open-bg); }
dl {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 19rem), 1fr));
  gap: .7rem 1.5rem; margin: 1rem 0 0;
}
dt { color: var(--soft); font-size: .82rem; }
dd { margin: 0; }

/* Tables */
.box { overflow-x: auto; border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
td, th {
  text-align: left; vertical-align: top; padding: .42rem .9rem .42rem 0; min-width: 4rem;
  border-bottom: 1px solid var(--line); overflow-wrap: break-word;
  font-variant-numeric: tabular-nums;
}
th:last-child, td:last-child { padding-right: 0; }
thead th {
  color: var(--soft); font-weight: 500; font-size: .82rem; line-height: 1.3;
  vertical-align: bottom;
}
tbody th { font-weight: 600; }
tbody tr:last-child > * { border-bottom: 0; }
.num { text-align: right; min-width: 0; }
.one { white-space: nowrap; min-width: 0; }
tbody .num { white-space: nowrap; }
.say { min-width: 14rem; }
code { font-family: var(--mono); font-size: .85em; font-weight: 400; }
th code { color: var(--soft); }
.copy {
  display: block; min-width: 22rem; background: var(--bg); border: 1px solid var(--line);
  border-radius: 6px; padding: .35rem .55rem; user-select: all; white-space: pre-wrap;
  overflow-wrap: anywhere;
}

/* Figures */
figure { margin: .8rem 0 1rem; }
figcaption { font-size: .85rem; color: var(--soft); margin-top: .4rem; }
svg { display: block; overflow: visible; }
svg.clip { overflow: hidden; }
svg text { fill: var(--ink); font-size: 12px; font-variant-numeric: tabular-nums; }
svg .soft { fill: var(--soft); }
svg .rule { stroke: var(--line); }
svg .mine { stroke: var(--ink); stroke-width: 2; }
svg .stock { stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 4 3; }
svg .unit { stroke: var(--ink); stroke-width: 1.5; }
svg .band { fill: var(--band); }
svg .reach { stroke-width: 2; }
svg .good { stroke: var(--good); fill: var(--good); }
svg .bad { stroke: var(--bad); fill: var(--bad); }
svg .open { stroke: var(--open); fill: var(--card); }
svg text.good, svg text.bad, svg text.open { stroke: none; }
svg text.open { fill: var(--open); }
svg .span { fill: var(--band); stroke: var(--card); }
svg .span.odd { fill: var(--line); }

/* Filters */
form { display: flex; flex-wrap: wrap; gap: .7rem 1rem; align-items: end; margin-top: 1.25rem; }
form[hidden], tr[hidden] { display: none; }
label { font-size: .82rem; color: var(--soft); min-width: 0; flex: 1 1 9rem; }
select, button {
  display: block; width: 100%; font: inherit; font-size: .92rem; color: var(--ink);
  background: var(--card); border: 1px solid var(--line); border-radius: 6px;
  padding: .4rem .5rem;
}
button { width: auto; cursor: pointer; }
output { font-size: .9rem; color: var(--soft); padding: .4rem 0; }

@media (min-width: 56rem) {
  main { padding: 2.5rem 2rem 4rem; }
  .head { grid-template-columns: 5fr 7fr; }
}
@media (max-width: 56rem) { .wide { display: none; } }
@media (max-width: 40rem) {
  section, details, .head > div { padding: 1rem .9rem; }
  .stack thead {
    position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%);
  }
  .stack tbody, .stack tr, .stack th { display: block; }
  .stack tr { border-bottom: 1px solid var(--line); padding: .55rem 0; }
  .stack tr[hidden] { display: none; }
  .stack tr:first-child { padding-top: 0; }
  .stack tr:last-child { border-bottom: 0; }
  .stack th, .stack td { border: 0; padding: .1rem 0; min-width: 0; }
  .stack td {
    display: grid; grid-template-columns: 6rem minmax(0, 1fr); gap: .6rem;
    white-space: normal; text-align: left;
  }
  .stack td::before { content: attr(data-name); color: var(--soft); font-size: .82rem; }
  .stack td:has(.copy) { display: block; }
  .stack td.none { display: none; }
  .stack .copy { min-width: 0; margin-top: .15rem; }
}
@media print {
  :root {
    color-scheme: light;
    --bg: #fff; --card: #fff; --ink: #000; --soft: #444; --line: #bbb; --good: #12703f;
    --good-bg: #fff; --bad: #b01e1e; --bad-bg: #fff; --open: #6b4500; --open-bg: #fff;
  }
  body { font-size: 10pt; }
  main { max-width: none; padding: 0; }
  nav, form { display: none; }
  section, details, .head > div { border-radius: 0; border-width: 1px 0 0; padding: .6rem 0; }
  .head .answer { padding-left: .6rem; }
  details::details-content { content-visibility: visible; block-size: auto; }
  table { font-size: 8pt; }
  .say, .copy { min-width: 0; }
  .box { overflow: visible; }
  .chip { border: 1px solid currentcolor; }
  tr, figure, .copy { break-inside: avoid; }
  h2 { break-after: avoid; }
}
"""
