/** What a person may ask of a job: each asks first, and links to the DAG run that it started, if it takes one. */

import { useEffect, useRef, useState } from "./vendor/preact-hooks.js";
import { post } from "./api.js";
import { words } from "./format.js";
import { html } from "./html.js";
import { ProblemNote } from "./parts.js";

const NAME = "[A-Za-z0-9_.\\-]{1,128}";

const Name = () => html`<label>Name of the savepoint <input name="savepoint-name" pattern=${NAME} />
  <span class="muted">letters, digits, _ . and -; empty: made of the run's id</span></label>`;

const Drain = () => html`<label><input type="checkbox" name="drain" /> Drain: every window fires, and the job is FINISHED, for good</label>`;

const Forced = () => html`<label><input type="checkbox" name="forced" /> Forced: it waits neither for a pending checkpoint nor for the minimum pause</label>`;

const Written = () => html`<label>State that is written <select name="checkpointType">
    <option value="CONFIGURED">what changed since the checkpoint before</option>
    <option value="FULL">all of it: the checkpoint shares no file with another one</option>
  </select></label>`;

const ALIVE = ["RUNNING", "RESTARTING", "FAILING", "SUSPENDED"];

/**
 * `fields` are the form, `body` and `bodyOf` make the request of it, and `done` is said where no run starts.
 * An act is open to a job that is RUNNING, or as it says itself.
 */
const ACTS = {
  pause: {
    title: "Pause", does: "Pause checkpointing", place: ["pause"], isOpen: ({ status, paused }) => !paused && ALIVE.includes(status),
    text: "No periodic checkpoint is taken until a person resumes it, so the job reads nothing: also behind a failover or a restore. What is pending completes, and a checkpoint or a savepoint that a person asks for is taken.",
    done: "Checkpointing is paused.",
  },
  resume: {
    title: "Resume", does: "Resume checkpointing", place: ["resume"], isOpen: ({ paused }) => paused,
    text: "Periodic checkpoints are taken again, and the job reads on where it was.",
    done: "Checkpointing is resumed.",
  },
  checkpoint: {
    title: "Take a checkpoint now", does: "Start the checkpoint", place: ["checkpoints"], fields: () => html`<${Written} />`,
    text: "A run of the checkpoint DAG starts now, whatever its schedule says.",
  },
  savepoint: {
    title: "Take a savepoint", does: "Take the savepoint", place: ["savepoints"],
    fields: () => html`<${Name} /><${Forced} />`,
    text: "A savepoint is a copy that is never subsumed. The job goes on.",
  },
  stop: {
    title: "Stop with a savepoint", does: "Stop the job", place: ["stop"], isDangerous: true,
    fields: () => html`<${Name} /><${Drain} /><${Forced} />`,
    text: "The job takes a savepoint and is SUSPENDED; a restore resumes it. A job that is drained cannot be resumed where it was: its windows have fired.",
  },
  cancel: {
    title: "Cancel the job", does: "Cancel the job", place: ["cancel"], isDangerous: true,
    text: "Pending checkpoints are aborted, and what was read since the last completed one is read again after a restore. Whether retained checkpoints stay is the option externalized_checkpoint_retention.",
  },
};

const isRunning = ({ status }) => status === "RUNNING";

/** *pipeline* is what REST says of it; *onDone* is called when the server has done what was asked. */
export function Actions({ path, pipeline, onDone }) {
  const [open, setOpen] = useState(null);
  const offered = Object.entries(ACTS).filter(([name]) => name !== (pipeline.paused ? "pause" : "resume"));
  return html`<div class="actions" role="group" aria-label="Actions">
    ${offered.map(([name, { title, isOpen = isRunning }]) => html`<button key=${name} type="button" class="button" disabled=${!isOpen(pipeline)}
      title=${isOpen(pipeline) ? "" : `The job is ${words(pipeline.status)}`} onClick=${() => setOpen(name)}>${title}</button>`)}
    ${open ? html`<${Ask} act=${ACTS[open]} path=${path} onClose=${() => setOpen(null)} onDone=${onDone} />` : null}
  </div>`;
}

/** Abort a checkpoint while it is pending. */
export function Abort({ path, checkpoint: { id } }) {
  const [isOpen, setOpen] = useState(false);
  const act = {
    title: "Abort", does: `Abort checkpoint ${id}`, place: ["checkpoints", String(id), "abort"], isDangerous: true,
    text: `Checkpoint ${id} ends without completing; the job goes on, and its records are read again.`,
    done: `Checkpoint ${id} is aborted.`,
  };
  return html`<button type="button" class="button" onClick=${() => setOpen(true)}>Abort</button>
    ${isOpen ? html`<${Ask} act=${act} path=${path} onClose=${() => setOpen(false)} />` : null}`;
}

/** Restore the job from *snapshot*, behind what a dry run says of it. */
export function RestoreFrom({ path, snapshot, name }) {
  const [isOpen, setOpen] = useState(false);
  const target = snapshot.savepoint
    ? { target: "savepoint", savepoint: snapshot.savepoint }
    : { target: "checkpoint", "checkpoint-id": snapshot.id };
  const act = {
    title: `Restore from ${name}`, does: `Restore from ${name}`, place: ["restore"], body: target, isDangerous: true,
    fields: () => html`<${Verdict} snapshot=${snapshot} />
      <label><input type="checkbox" name="roll-back-tables" /> Roll the sinks' tables back to what it pinned</label>
      <label><input type="checkbox" name="dry-run" /> Dry run: a DAG run verifies every file, and changes nothing</label>
      <label><input type="checkbox" required /> I have read what the dry run says</label>`,
    text: "State and positions go back to this snapshot, and pending checkpoints are aborted. Everything is verified before anything changes.",
  };
  return html`<button type="button" class="button" onClick=${() => setOpen(true)}>Restore</button>
    ${isOpen ? html`<${Ask} act=${act} path=${path} onClose=${() => setOpen(false)} />` : null}`;
}

/** Delete a savepoint; `onGone` is called when the person has read what became of it. */
export function Dispose({ path, savepoint, onGone }) {
  const [isOpen, setOpen] = useState(false);
  const close = () => {
    setOpen(false);
    onGone();
  };
  const act = {
    title: `Dispose of savepoint ${savepoint}`, does: `Delete savepoint ${savepoint}`, place: ["savepoint-disposal"],
    body: { "savepoint-name": savepoint }, isDangerous: true,
    fields: () => html`<label><input type="checkbox" required /> No other job begins from it, and none will</label>`,
    text: "Its files are deleted, for good. What this job still needs is not: then it is refused, and says why.",
    done: `Savepoint ${savepoint} is deleted.`,
  };
  return html`<button type="button" class="button" aria-label="Dispose of savepoint ${savepoint}" onClick=${() => setOpen(true)}>Dispose</button>
    ${isOpen ? html`<${Ask} act=${act} path=${path} onClose=${close} />` : null}`;
}

const Verdict = ({ snapshot }) => html`<div class=${snapshot.can_restore ? "note" : "problem"}>
  <strong>Dry run, by names and sizes: ${snapshot.can_restore ? "nothing stands against it" : "it would be refused"}</strong>
  ${(snapshot.problems ?? []).map((problem) => html`<p>${problem}</p>`)}
  ${(snapshot.tables_ahead ?? []).map((one) => html`<p>Readers of ${one.sink ?? one.uid} see more than this snapshot pins.</p>`)}
</div>`;

/** The dialog that asks before *act* is posted. */
export function Ask({ act, path, onClose, onDone = () => {} }) {
  const dialog = useRef(null);
  const [told, setTold] = useState({});
  useEffect(() => dialog.current.showModal(), []);
  const send = async (event) => {
    event.preventDefault();
    setTold({ isSent: true });
    try {
      setTold({ answer: await post(path(...act.place), bodyOf(act, event.target)) });
      onDone();
    } catch (problem) {
      setTold({ problem });
    }
  };
  return html`<dialog ref=${dialog} onClose=${onClose} aria-labelledby="asked">
    <h2 id="asked">${act.title}</h2>
    <form onSubmit=${send}>
      <p>${act.text}</p>
      ${told.answer ? html`<${Done} act=${act} answer=${told.answer} />` : act.fields?.()}
      <${ProblemNote} problem=${told.problem} />
      <div class="actions">
        <button type="button" class="button" onClick=${() => dialog.current.close()}>${told.answer ? "Close" : "Not now"}</button>
        ${told.answer ? null : html`<button type="submit" class="button ${act.isDangerous ? "danger" : "primary"}" disabled=${told.isSent}>${act.does}</button>`}
      </div>
    </form>
  </dialog>`;
}

function bodyOf({ body = {}, bodyOf: made }, form) {
  if (made) return made(form);
  const named = [...form.elements].filter(({ name }) => name);
  const given = named.map((one) => [one.name, one.type === "checkbox" ? one.checked : one.value.trim() || null]);
  return { ...body, ...Object.fromEntries(given) };
}

const Done = ({ act, answer }) => html`<p role="status">${answer.run
  ? html`Started: <a href=${answer.run}>run ${answer["request-id"]}</a> says how it goes.` : act.done ?? "Done."}</p>`;
