/** What this visit has seen, by persona. */

export const RECENT = 20;
const KEPT = 60;

export class Journal {
  visits = new Map();

  of(persona) {
    if (!this.visits.has(persona)) {
      this.visits.set(persona, { pages: 0, firsts: [], tallies: new Map() });
    }
    return this.visits.get(persona);
  }

  /** A page was shown; `category` had its first place. */
  shown(persona, category) {
    const visit = this.of(persona);
    visit.pages += 1;
    visit.firsts = [...visit.firsts, category].slice(-KEPT);
  }

  /** A product of `category` was looked at; click is 0 or 1. */
  judged(persona, category, click) {
    const { tallies } = this.of(persona);
    const tally = tallies.get(category) ?? { seen: 0, clicks: 0 };
    tallies.set(category, { seen: tally.seen + 1, clicks: tally.clicks + click });
  }
}
