"use strict";
// The files of a drop, and which of them to send.

async function filesOfDrop(items) {
  const entries = [...items].map((item) => item.webkitGetAsEntry?.() ?? item.getAsFile()).filter(Boolean);
  const found = [];
  for (const entry of entries) await collect(entry, "", found, false);
  return found;
}

async function collect(entry, path, found, inFolder) {
  if (entry instanceof File) {
    found.push({ file: entry, name: entry.name, inFolder });
  } else if (entry.isFile) {
    const file = await new Promise((resolve, reject) => entry.file(resolve, reject));
    found.push({ file, name: path + file.name, inFolder });
  } else if (entry.isDirectory) {
    const reader = entry.createReader();
    for (;;) { // a call gives some of them; the last one none
      const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
      if (!some.length) break;
      for (const one of some) await collect(one, `${path}${entry.name}/`, found, true);
    }
  }
}

function isPicture(one, extensions) { // in a folder there are other files too; a file that was chosen is always asked about
  const extension = one.name.split(".").pop().toLowerCase();
  return !one.inFolder || (extensions.includes(extension) && !/(^|\/)\./.test(one.name));
}
