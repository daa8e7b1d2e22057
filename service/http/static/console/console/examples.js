// Commands to copy: how to ask this service from a shell.

import { key } from "./api.js";
import { toast } from "./dialog.js";
import { h } from "./dom.js";

/** A curl command with a button that copies it. */
export function curl(title, method, path, body) {
  const url = new URL(path, document.baseURI).href;
  const lines = [
    `curl -s${method === "POST" ? "" : ` -X ${method}`} ${url}`,
    ...(key.value ? [`  -H "Authorization: Bearer $FORAGE_KEY"`] : []),
    "  -H 'Content-Type: application/json'",
    `  -d ${quoted(JSON.stringify(body))}`,
  ];
  const text = lines.join(" \\\n");
  const copy = h("button", { type: "button", class: "small", onclick: () => copied(text) }, "Copy");
  return h("figure", { class: "code" }, h("figcaption", {}, title, copy), h("pre", { tabindex: 0 }, text));
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied.");
  } catch {
    toast("This browser does not let a page copy: select the command and copy it.");
  }
}

/** A value of each feature of the context. */
export function contextOf(features) {
  return Object.fromEntries(Object.entries(features.context ?? {}).map(([name, feature]) => [name, valueOf(feature)]));
}

export function valueOf(feature) {
  switch (feature.type) {
    case "categorical":
      return feature.values[0];
    case "boolean":
      return feature.default ?? false;
    case "numeric":
      return feature.default ?? feature.center ?? 0;
    case "vector":
      return new Array(feature.size).fill(feature.center ?? 0);
    default:
      return feature.default ?? "anything";
  }
}
