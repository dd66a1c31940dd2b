"""What a reader of a page needs, asked of the browser itself."""

# `measure(document, window)`: whatever scrolls can be focused and has a name, each summary opens; the least
# contrast of text with what is behind it; how wide the page is, and its headings.
MEASURE = """
const luminance = c => { const [r, g, b] = c.map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b; };
const parse = text => { const n = (text.match(/-?[\\d.]+(e-?\\d+)?/g) || []).map(Number);
  const unit = text.startsWith('color(') ? 1 : 255;
  return [n[0] / unit, n[1] / unit, n[2] / unit, n.length > 3 ? n[3] : 1]; };
const over = (top, below) => [0, 1, 2].map(i => top[3] * top[i] + (1 - top[3]) * below[i]);
const measure = (page, view) => {
  const bad = [], paper = parse(view.getComputedStyle(page.body).backgroundColor);
  let least = 21, hidden = 0;
  page.querySelectorAll('details').forEach(d => { d.open = false; d.querySelector('summary').click();
    if (!d.open) bad.push('a summary that does not open'); });
  for (const e of page.querySelectorAll('body *')) {
    const style = view.getComputedStyle(e);
    const scrolls = /auto|scroll/.test(style.overflowX + style.overflowY) &&
      (e.scrollWidth > e.clientWidth || e.scrollHeight > e.clientHeight);
    if (scrolls) { hidden++; e.focus();
      const reached = page.activeElement === e && e.getAttribute('aria-label');
      if (!reached) bad.push('unreachable ' + e.className); }
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (!own || e.closest('svg')) continue;
    let layers = [];
    for (let x = e; x; x = x.parentElement) layers.push(parse(view.getComputedStyle(x).backgroundColor));
    const behind = layers.reverse().reduce((below, top) => over(top, below), paper.slice(0, 3));
    const [a, b] = [luminance(over(parse(style.color), behind)), luminance(behind)];
    least = Math.min(least, (Math.max(a, b) + .05) / (Math.min(a, b) + .05));
  }
  const root = page.documentElement;
  return {width: view.innerWidth, wide: root.scrollWidth, hidden, bad, least, lang: root.lang,
    levels: [...page.querySelectorAll('h1,h2,h3')].map(h => +h.tagName[1])};
};
"""
