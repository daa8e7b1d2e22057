// Answers for which the service reads the whole log: asked for now and then, and nobody waits.

import { Refusal, get, of } from "./api.js";

const EVERY_MS = 10_000; // the service remembers an answer for as long
const PATIENCE_MS = 130_000; // it reads the whole log

/** Looks at a part of an experiment. show: takes an answer; refused: the message, as long as there
 * was none. */
export function looks(app, part, show, refused) {
  let asked = -Infinity;
  let known = false;
  let gone = false;

  return {
    /** Ask again, unless that was lately. */
    async ask() {
      if (performance.now() < asked + EVERY_MS) return;
      asked = Infinity;
      try {
        const answer = await get(of(app.name, part), {}, PATIENCE_MS);
        if (gone) return;
        known = true;
        show(answer);
      } catch (fault) {
        if (!(fault instanceof Refusal)) throw fault;
        if (!known && !gone) refused(`${fault.message}.`.replace(/\.+$/, "."));
      } finally {
        asked = performance.now();
      }
    },
    stop() {
      gone = true;
    },
  };
}
