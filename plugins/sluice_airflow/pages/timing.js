/** When a running job takes checkpoints, as a person changes it: a pause, and other times. */

import { useState } from "./vendor/preact-hooks.js";
import { useResource } from "./api.js";
import { Ask } from "./actions.js";
import { count, duration, size } from "./format.js";
import { html } from "./html.js";
import { Moment } from "./parts.js";

const UNITS = [["ms", 1], ["s", 1_000], ["min", 60_000], ["h", 3_600_000], ["d", 86_400_000]];
const LASTS = "It holds from the next checkpoint on, through failovers and restores, until it is reset or the job is submitted anew.";

/** The value of an option, in its unit. */
export const valueOf = ({ unit }, value) => (
  value == null ? "none" : unit === "ms" ? duration(value) : unit === "bytes" ? size(value) : count(value));

/** That checkpointing is paused, and who changed it last. */
export const PausedNote = ({ config }) => (config?.paused ? html`<p class="note warn" role="status">
  <strong>Checkpointing is paused.</strong> No periodic checkpoint is taken, so the job reads nothing until a person resumes it.
  What is pending completes, and a checkpoint or a savepoint that a person asks for is taken. <${Changed} config=${config} /></p>` : null);

/** Who made the last change, and when. */
export const Changed = ({ config: { changed_by: by, changed_at: at } }) => (at == null
  ? null : html`<span class="muted">Changed last by ${by || "an unknown person"}, <${Moment} at=${at} />.</span>`);

/** The value in force, with a button where a person may change it. */
export function InForce({ path, setting, shown, onChanged }) {
  const [isOpen, setOpen] = useState(false);
  const { name, declared, in_force: inForce } = setting;
  const close = () => setOpen(false);
  return html`<span class="in-force"><span>${shown}${setting.changed ? html` <span class="badge busy" title="A person changed it while the job ran">changed</span>`
    : declared === inForce ? null : html` <span class="badge warn" title="${setting.awaits_restore ? "The declaration changed; a restore takes it" : "It was given with the submission"}">${setting.awaits_restore ? "until a restore" : "differs"}</span>`}</span>
    ${setting.can_change ? html`<button type="button" class="button small" aria-label="Change ${name}" onClick=${() => setOpen(true)}>Change</button>` : null}
    ${isOpen ? html`<${Ask} act=${changing(setting)} path=${path} onClose=${close} onDone=${onChanged} />` : null}</span>`;
}

const changing = (setting) => ({
  title: `Change ${setting.name}`, does: "Change it", place: ["checkpoints", "config"],
  text: `${setting.says} ${LASTS}`,
  fields: () => html`<${Value} setting=${setting} />`,
  bodyOf: (form) => ({ [setting.name.replaceAll("_", "-")]: givenIn(form) }),
  done: `${setting.name} is changed.`,
});

function Value({ setting }) {
  const { name, unit: kind, in_force: inForce, declared, least, most } = setting;
  const limits = `${valueOf(setting, least)} or more${most == null ? "" : `, ${valueOf(setting, most)} or less`}; declared is ${valueOf(setting, declared)}`;
  if (kind !== "ms") {
    return html`<label>${name} <input type="number" name="value" required min=${least} max=${most} step="1" defaultValue=${inForce} />
      <span class="muted">${limits}</span></label>`;
  }
  const [unit, factor] = UNITS.findLast(([, length]) => inForce && inForce % length === 0) ?? UNITS[1];
  return html`<div class="filters">
    <label>${name} <input type="number" name="value" required min="0" step="any" defaultValue=${inForce == null ? "" : inForce / factor} /></label>
    <label>Unit <select name="unit">${UNITS.map(([other]) => html`<option selected=${other === unit}>${other}</option>`)}</select></label>
  </div><p class="muted">${limits}</p>`;
}

/** In milliseconds, or a plain number. */
function givenIn(form) {
  const value = Number(form.elements.namedItem("value").value);
  const unit = form.elements.namedItem("unit")?.value;
  return Math.round(value * (UNITS.find(([name]) => name === unit)?.[1] ?? 1));
}

/** Take back every time that was changed; a pause stays. */
export function Reset({ path, changed, onChanged }) {
  const [isOpen, setOpen] = useState(false);
  if (!changed.length) return null;
  const act = {
    title: "Reset to what was submitted", does: "Reset", place: ["checkpoints", "config"], body: { reset: true },
    text: `What a person changed is taken back: ${changed.map((one) => `${one.name}, now ${valueOf(one, one.in_force)}`).join("; ")}. A pause stays.`,
    done: "The job runs as it was submitted.",
  };
  return html`<button type="button" class="button small" onClick=${() => setOpen(true)}>Reset</button>
    ${isOpen ? html`<${Ask} act=${act} path=${path} onClose=${() => setOpen(false)} onDone=${onChanged} />` : null}`;
}
