"use strict";
// Sends chosen pictures one by one, a few at a time, and shows what the server says about each.

const AT_ONCE = 4; // requests
const MOST = 1000; // pictures on the page
const SHOWN_CLASSES = 3;
const RETRIES = 20; // a second apart, while the server is busy

const byId = (id) => document.getElementById(id);
const percent = (share) => (share > 0.9995 ? ">99.9%" : share < 0.0005 ? "<0.1%" : `${(100 * share).toFixed(1)}%`);
const pictures = []; // {file, name, card, answer, error, label}
const waiting = [];
let info = null;
let running = 0;
let only = null; // the answer that is shown alone

function element(tag, text, kind) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

// ---- Choosing pictures (what a drop has is collected in choose.js)

function add(chosen) {
  const wanted = chosen.filter((one) => isPicture(one, info.extensions)).sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
  const room = Math.max(MOST - pictures.length, 0);
  for (const one of wanted.slice(0, room)) {
    const picture = { ...one, card: makeCard(one), answer: null, error: null, label: null };
    pictures.push(picture);
    waiting.push(picture);
  }
  const notes = [];
  const others = chosen.length - wanted.length;
  if (others) notes.push(`${others.toLocaleString("en")} ${others === 1 ? "file is" : "files are"} no picture.`);
  if (wanted.length > room) notes.push(`The first ${room.toLocaleString("en")} of ${wanted.length.toLocaleString("en")} pictures are taken.`);
  if (!wanted.length) notes.push("No pictures found.");
  byId("status").dataset.note = notes.join(" ");
  work();
  refresh();
}

// ---- Asking the server

async function work() {
  while (running < AT_ONCE && waiting.length) {
    const picture = waiting.shift();
    running += 1;
    ask(picture).catch((error) => { picture.error = String(error.message || error); }).finally(() => {
      running -= 1;
      fill(picture);
      refresh();
      work();
    });
  }
}

async function ask(picture) {
  const most = info.limits.bytes;
  if (picture.file.size > most) throw new Error(`larger than the ${most >> 20} MB allowed`);
  for (let tries = 0; ; tries += 1) {
    let response;
    try {
      response = await fetch(`api/predict?top=${info.classes.length}`, {
        method: "POST", body: picture.file, headers: { "Content-Type": "application/octet-stream" },
      });
    } catch {
      throw new Error("no answer: is the server still running, and the file still there?");
    }
    if (response.status === 503 && tries < RETRIES) {
      await new Promise((resolve) => setTimeout(resolve, 1000));
      continue;
    }
    const found = await response.json();
    if (!response.ok) throw new Error(found.error);
    picture.answer = found;
    return;
  }
}

async function correct(picture, label) {
  const form = new FormData();
  form.append("label", label);
  form.append("picture", picture.file, "picture");
  const saved = picture.card.querySelector(".saved");
  saved.textContent = "saving …";
  try {
    const response = await fetch("api/corrections", { method: "POST", body: form });
    const found = await response.json();
    if (!response.ok) throw new Error(found.error);
    picture.label = found.label;
    saved.textContent = `✓ kept for the next training${found.note && `; ${found.note}`}`;
  } catch (error) {
    saved.textContent = `not saved: ${error.message}`;
  }
  mark(picture);
  refresh();
}

// ---- Showing answers

const least = () => byId("threshold").value / 100;

// The same rule as on the server: a class at its least probability is an answer; with one, no picture is that is unlike.
const isUnsure = ({ probability, unlike }) => probability < least() || (unlike && least() > 0);
const answerOf = ({ answer }) => (isUnsure(answer) ? info.unsure : answer.classes[0].class);
const groupOf = (picture) => (picture.error ? "not read" : picture.answer ? (picture.label ?? answerOf(picture)) : null);

function makeCard(one) {
  const card = byId("card").content.firstElementChild.cloneNode(true);
  const image = card.querySelector("img");
  image.onload = () => image.classList.toggle("pixels", Math.max(image.naturalWidth, image.naturalHeight) < 64);
  image.onerror = () => { image.hidden = true; };
  image.src = URL.createObjectURL(one.file);
  image.alt = one.name;
  card.querySelector(".file").textContent = one.name;
  card.querySelector(".class").textContent = "…";
  card.classList.add("waiting");
  byId("pictures").append(card);
  return card;
}

function fill(picture) {
  const { card, answer } = picture;
  card.classList.remove("waiting");
  if (picture.error) {
    card.classList.add("failed");
    card.querySelector(".class").textContent = picture.error;
    return;
  }
  for (const one of answer.classes.slice(0, SHOWN_CLASSES)) {
    card.querySelector(".classes").append(bar(one.class, one.probability));
  }
  card.querySelector(".unlike").hidden = !answer.unlike;
  if (answer.views.length) fillViews(card.querySelector(".views"), answer);
  if (answer.nearest.length) fillNearest(card.querySelector(".nearest"), answer.nearest);
  fillChoice(picture);
  mark(picture);
}

function bar(name, share) {
  const row = element("li");
  const track = element("span", undefined, "track");
  track.style.setProperty("--share", share);
  row.title = name;
  row.append(element("span", name, "name"), track, element("span", percent(share), "share"));
  return row;
}

function fillViews(box, answer) {
  const best = answer.classes[0].class;
  const agree = answer.views.filter((view) => view.class === best).length;
  box.hidden = false;
  box.querySelector("summary").textContent = `${agree} of ${answer.views.length} views alone say ${best}`;
  for (const view of answer.views) {
    const row = element("li", undefined, view.class === best ? "" : "differs");
    row.append(element("span", view.view, "view"), element("span", view.class, "name"),
      element("span", percent(view.probability), "share"));
    box.querySelector("ul").append(row);
  }
}

function fillNearest(box, nearest) {
  box.hidden = false;
  for (const one of nearest) {
    const row = element("li");
    const image = element("img");
    image.onload = () => image.classList.toggle("pixels", Math.max(image.naturalWidth, image.naturalHeight) < 64);
    image.loading = "lazy";
    image.alt = one.file;
    image.src = one.picture;
    row.title = `${one.file}: cosine ${one.similarity.toFixed(2)}`;
    const name = one.class.replace(/[_-]/g, "$&\u200b"); // where it may break
    row.append(image, element("span", name, "name"), element("span", one.similarity.toFixed(2), "share"));
    box.querySelector("ul").append(row);
  }
}

function fillChoice(picture) {
  const form = picture.card.querySelector(".correct");
  const choice = form.querySelector("select");
  form.hidden = false;
  choice.append(new Option("choose …", "", true, true));
  const fillOnce = () => { // a thousand pictures of a thousand classes would be a million options
    if (choice.options.length > 1) return;
    for (const name of info.classes) choice.append(new Option(name, name));
  };
  for (const event of ["pointerdown", "focus", "keydown"]) choice.addEventListener(event, fillOnce);
  choice.onchange = () => choice.value && correct(picture, choice.value);
  form.onsubmit = (event) => event.preventDefault();
}

function mark(picture) {
  if (!picture.answer) return;
  const { card, label } = picture;
  const said = answerOf(picture);
  card.querySelector(".class").textContent = label ?? said;
  card.classList.toggle("unsure", !label && said === info.unsure);
  card.classList.toggle("corrected", Boolean(label));
}

function refresh() {
  byId("least").textContent = `${byId("threshold").value}%`;
  const done = pictures.filter((one) => one.answer || one.error).length;
  const total = pictures.length;
  const parts = [];
  if (total) parts.push(done < total ? `${done} of ${total} answered …` : `${total} ${total === 1 ? "picture" : "pictures"}.`);
  if (byId("status").dataset.note) parts.push(byId("status").dataset.note);
  byId("status").textContent = parts.join(" ");
  byId("actions").hidden = !total;
  document.body.classList.toggle("has-pictures", total > 0);
  showCounts();
}

function showCounts() {
  const counts = new Map();
  for (const picture of pictures) {
    const group = groupOf(picture);
    if (group !== null) counts.set(group, (counts.get(group) ?? 0) + 1);
  }
  if (!counts.has(only)) only = null;
  const buttons = [...counts].sort((a, b) => b[1] - a[1]).map(([group, count]) => {
    const button = element("button");
    button.append(element("span", group), element("b", String(count)));
    button.setAttribute("aria-pressed", String(only === group));
    button.onclick = () => { only = only === group ? null : group; refresh(); };
    return button;
  });
  byId("counts").replaceChildren(...(pictures.length > 1 ? buttons : []));
  for (const picture of pictures) picture.card.hidden = only !== null && groupOf(picture) !== only;
}

// ---- The CSV

function cell(value) {
  let text = String(value ?? "");
  if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`; // else a spreadsheet may run it
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function csv() {
  const rows = [["file", "class", "probability", "unlike", "corrected", "error", ...info.classes]];
  for (const picture of pictures) {
    const { answer } = picture;
    const by = new Map((answer?.classes ?? []).map((one) => [one.class, one.probability.toFixed(6)]));
    rows.push([picture.name, answer ? answerOf(picture) : "", answer?.probability.toFixed(6) ?? "",
      answer?.unlike ?? "", picture.label ?? "",
      picture.error ?? "", ...info.classes.map((name) => by.get(name) ?? "")]);
  }
  return rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

function download() {
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([csv()], { type: "text/csv" }));
  link.download = "answers.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function clear() {
  for (const picture of pictures) URL.revokeObjectURL(picture.card.querySelector("img").src);
  pictures.length = waiting.length = 0;
  only = null;
  byId("status").dataset.note = "";
  byId("pictures").replaceChildren();
  refresh();
}

// ---- Start

async function watchNearest() {
  const { nearest } = info;
  const line = byId("preparing");
  line.hidden = nearest.state !== "preparing" && !nearest.note;
  const done = nearest.total ? `: ${nearest.done.toLocaleString("en")} of ${nearest.total.toLocaleString("en")}` : "";
  line.textContent = nearest.note || `The nearest training pictures are being prepared${done}.`;
  if (nearest.state !== "preparing") return;
  await new Promise((resolve) => setTimeout(resolve, 2000));
  info = await (await fetch("api/info")).json();
  watchNearest();
}

async function start() {
  info = await (await fetch("api/info")).json();
  byId("address").textContent = new URL("api/predict", location.href).href;
  const ofInput = (event) => {
    add([...event.target.files].map((file) => ({
      file, name: file.webkitRelativePath || file.name, inFolder: Boolean(file.webkitRelativePath),
    })));
    event.target.value = ""; // the same file can be chosen again
  };
  byId("files").onchange = byId("folder").onchange = ofInput;
  let depth = 0; // a drag enters every element that it passes
  const over = (change) => { depth += change; document.body.classList.toggle("over", depth > 0); };
  document.ondragenter = (event) => { event.preventDefault(); over(1); };
  document.ondragleave = () => over(-1);
  document.ondragover = (event) => event.preventDefault();
  document.ondrop = async (event) => { event.preventDefault(); over(-depth); add(await filesOfDrop(event.dataTransfer.items)); };
  byId("threshold").oninput = () => { pictures.forEach(mark); refresh(); };
  byId("download").onclick = download;
  byId("clear").onclick = clear;
  document.body.dataset.ready = "true";
  refresh();
  watchNearest();
}

start();
