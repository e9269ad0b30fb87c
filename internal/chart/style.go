package chart

// Style is the style sheet of every page: light, dark and on paper. Series have the colours
// that people with any kind of colour vision can tell apart (Okabe and Ito), and a shape
// beside each.
const Style = `:root{color-scheme:light;--bg:#fff;--fg:#1b1f24;--mute:#57606a;--line:#d5dae0;--soft:#f3f4f6;--good:#00694f;--bad:#b23f00;--warn:#7a5a00;--none:#8893a0;
--s1:#0072b2;--s2:#d55e00;--s3:#009e73;--s4:#b0578c;--s5:#c98500;--shade:#d55e0022;--goal:#1a7f4b1a}
@media screen and (prefers-color-scheme:dark){:root{color-scheme:dark;--bg:#14181d;--fg:#e6eaef;--mute:#9aa5b1;--line:#39424d;--soft:#1f252c;--good:#35c49a;--bad:#ff9a5c;--warn:#f0c34a;--none:#6f7b88;
--s1:#4aa8e0;--s2:#ff8c42;--s3:#35c49a;--s4:#e29bc4;--s5:#f0b429;--shade:#ff8c4230;--goal:#4cc38a24}}
*{box-sizing:border-box}
body{margin:1.5rem auto;padding:0 1.25rem;max-width:1240px;background:var(--bg);color:var(--fg);font:14px/1.45 system-ui,sans-serif}
h1{font-size:1.6rem;line-height:1.25;margin:0 0 .3rem}h2{font-size:1.1rem;margin:1.8rem 0 .4rem;break-after:avoid}h2 small{display:inline;font-weight:400;margin-left:.5rem}
p{margin:.3rem 0;max-width:70rem}small{color:var(--mute);display:block;font-size:.85em}
table{border-collapse:collapse;width:100%;margin:.4rem 0;font-variant-numeric:tabular-nums}
th,td{text-align:left;vertical-align:top;padding:.3rem .7rem .3rem 0;border-bottom:1px solid var(--line);overflow-wrap:break-word}
th{font-weight:600;color:var(--mute);vertical-align:bottom}td.n,th.n{text-align:right}td.n{white-space:nowrap}.n+:not(.n,[colspan]),[colspan]+[rowspan]{padding-left:.7rem}
code,pre{font:12.5px/1.45 ui-monospace,monospace}pre{background:var(--soft);padding:.6rem .8rem;white-space:pre-wrap;overflow-wrap:anywhere;border-radius:4px;margin:.4rem 0}
.wide{overflow-x:auto}.v{font-weight:600;white-space:nowrap}.good{color:var(--good)}.bad{color:var(--bad);font-weight:600}.warn{color:var(--warn)}.mute{color:var(--mute)}.none{color:var(--none)}
figure{margin:0 0 .9rem;break-inside:avoid}figcaption{font-weight:600}figcaption span{font-weight:400;margin-left:.9rem;color:var(--mute);white-space:nowrap}figcaption span.about{white-space:normal}
i.k{display:inline-block;width:1.4em;border-top:2.5px solid;margin-right:.35em;vertical-align:.25em}i.dash{border-top-style:dashed}i.box{border-top-width:.7em;width:.7em;vertical-align:-.05em}
.s1{color:var(--s1)}.s2{color:var(--s2)}.s3{color:var(--s3)}.s4{color:var(--s4)}.s5{color:var(--s5)}
svg{display:block;width:100%;height:auto}.wide>figure>svg{min-width:52rem}
svg text{fill:var(--fg);font:11px system-ui,sans-serif}svg .t{fill:var(--mute)}svg .g{stroke:var(--line);stroke-width:1}
svg .line{fill:none;stroke:currentColor;stroke-width:1.8}svg .dash{stroke-dasharray:4 3;stroke-width:1.3}svg .dot,svg .box{fill:currentColor}svg .hit{fill:transparent}svg .hit:hover{fill:var(--goal)}
svg .shade{fill:var(--shade)}svg .shade.s1,svg .shade.s2{fill:currentColor;fill-opacity:.14}
svg .range{stroke:var(--none);stroke-width:1.5}svg .most{fill:currentColor;fill-opacity:.45}svg .mid{stroke:var(--fg);stroke-width:2}
details{margin:.2rem 0}summary{cursor:pointer}
@page{size:A4 landscape;margin:12mm}
@media print{body{margin:0;padding:0;max-width:none;font-size:10px;print-color-adjust:exact;-webkit-print-color-adjust:exact}tr{break-inside:avoid}thead{display:table-header-group}.wide{overflow:visible}.wide>figure>svg{min-width:0}}
`
