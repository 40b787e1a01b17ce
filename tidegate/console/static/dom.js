// Helpers for elements and numbers. Data from the server is inserted as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

// Functions become event listeners, all other values attributes.
function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(key, value);
    else if (value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const byId = (id) => document.getElementById(id);

export function count(value) {
  if (value === null || value === undefined) return "–";
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "K"]]) {
    if (Math.abs(value) >= size) return `${(value / (unit === "K" ? 1e3 : size)).toFixed(1)} ${unit}`;
  }
  return value >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString("en") : value.toFixed(1);
}

export const rate = (value) => `${count(value)}/s`;

export function bytes(value) {
  let unit = 0;
  while (value >= 1024 && unit < 4) { value /= 1024; unit += 1; }
  return `${unit ? value.toFixed(1) : value} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 120) return `${value.toFixed(1)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${Math.round(value / 3600)} h`;
  return `${Math.round(value / 86400)} d`;
}

// Local time.
export const clock = (unixSeconds) => new Date(unixSeconds * 1000).toLocaleTimeString("en-GB");

// UTC, like all timestamps of Tidegate.
export const timestamp = (iso) => (iso ? iso.slice(0, 19).replace("T", " ") : "–");
