// Preact and htm, as one name for all modules. Strings are put into text nodes and attributes by them, never as markup.
import htm from "/assets/vendor/htm.js";
import { h } from "/assets/vendor/preact.js";

export { render } from "/assets/vendor/preact.js";
export { useEffect, useLayoutEffect, useMemo, useRef, useState } from "/assets/vendor/hooks.js";
export const html = htm.bind(h);
