/**
 * What a person may ask of a job: each asks first, and links to the DAG run that it started, if it takes one.
 * What may be said of an act is what the server says of it (`GET /acts`), as on the command line and in the forms.
 */

import { useEffect, useRef, useState } from "./vendor/preact-hooks.js";
import { post, useResource, withQuery } from "./api.js";
import { count, words } from "./format.js";
import { html } from "./html.js";
import { ProblemNote } from "./parts.js";

const ALIVE = ["RUNNING", "RESTARTING", "FAILING", "SUSPENDED"];

/**
 * `first` are the fields that are shown at once, the others of the act are below "More"; `fields` are of this dialog alone.
 * `body` and `bodyOf` make the request, and `done`, or what `doneOf` makes of the answer, is said where no run starts.
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
    title: "Take a checkpoint now", does: "Start the checkpoint", place: ["checkpoints"], first: ["checkpointType"],
    text: "A run of the checkpoint DAG starts now, whatever its schedule says.",
  },
  savepoint: {
    title: "Take a savepoint", does: "Take the savepoint", place: ["savepoints"],
    first: ["savepoint-name", "forced"],
    text: "A savepoint is a copy that is never subsumed. The job goes on.",
  },
  stop: {
    title: "Stop with a savepoint", does: "Stop the job", place: ["stop"], isDangerous: true,
    first: ["savepoint-name", "drain", "forced"],
    text: "The job takes a savepoint and is SUSPENDED; a restore resumes it. A job that is drained cannot be resumed where it was: its windows have fired.",
  },
  backfill: {
    title: "Backfill", does: "Read the partitions again", doesDry: "Say what would be read again", place: ["backfill"], first: ["input", "dry-run"],
    text: "What was read of these partitions is taken back, and what they are now is read, in a checkpoint of its own. To abort that checkpoint cancels it.",
    doneOf: ({ plan, request_id: isAsked }) => html`${isAsked ? "It is asked for." : "Nothing is asked for yet."}
      ${plan.sources.map((one) => ` Of ${one.source}, ${count(one.rows_taken_back)} rows of ${count(one.files_taken_back)} files are taken back, and ${count(one.rows)} rows of ${count(one.files)} files are read.`)}
      ${plan.stages.length ? ` These go to ${plan.stages.join(", ")}.` : ""}`,
  },
  cancel: {
    title: "Cancel the job", does: "Cancel the job", place: ["cancel"], isDangerous: true,
    text: "Pending checkpoints are aborted, and what was read since the last completed one is read again after a restore. Whether retained checkpoints stay is the option externalized_checkpoint_retention.",
  },
};

const isRunning = ({ status }) => status === "RUNNING";

/** Why an act would be refused; empty where it would not, or where nobody has said yet. */
export const refusal = (pipeline, name) => pipeline?.refused[name] ?? "";

/** *pipeline* is what REST says of it; *onDone* is called when the server has done what was asked. */
export function Actions({ path, pipeline, onDone }) {
  const [open, setOpen] = useState(null);
  const offered = Object.entries(ACTS).filter(([name]) => name !== (pipeline.paused ? "pause" : "resume"));
  return html`<div class="actions" role="group" aria-label="Actions">
    ${offered.map(([name, { title, isOpen = isRunning }]) => html`<button key=${name} type="button" class="button" disabled=${!isOpen(pipeline) || Boolean(refusal(pipeline, name))}
      title=${isOpen(pipeline) ? refusal(pipeline, name) : `The job is ${words(pipeline.status)}`} onClick=${() => setOpen(name)}>${title}</button>`)}
    ${open ? html`<${Ask} act=${{ name: open, ...ACTS[open] }} path=${path} onClose=${() => setOpen(null)} onDone=${onDone} />` : null}
  </div>`;
}

/** Abort a checkpoint while it is pending. */
export function Abort({ path, pipeline, checkpoint: { id } }) {
  const [isOpen, setOpen] = useState(false);
  const act = {
    name: "abort", first: ["because"], title: "Abort", does: `Abort checkpoint ${id}`, place: ["checkpoints", String(id), "abort"], isDangerous: true,
    text: `Checkpoint ${id} ends without completing; the job goes on, and its records are read again.`,
    done: `Checkpoint ${id} is aborted.`,
  };
  return html`<button type="button" class="button" disabled=${Boolean(refusal(pipeline, "abort"))} title=${refusal(pipeline, "abort")} onClick=${() => setOpen(true)}>Abort</button>
    ${isOpen ? html`<${Ask} act=${act} path=${path} onClose=${() => setOpen(false)} />` : null}`;
}

/** Restore the job from *snapshot*, behind what a dry run says of it. */
export function RestoreFrom({ path, pipeline, snapshot, name }) {
  const [isOpen, setOpen] = useState(false);
  const target = snapshot.savepoint
    ? { target: "savepoint", savepoint: snapshot.savepoint }
    : { target: "checkpoint", "checkpoint-id": snapshot.id };
  const act = {
    name: "restore", title: `Restore from ${name}`, place: ["restore"], isDangerous: true,
    does: `Restore from ${name}`, doesDry: "Verify every file, and change nothing",
    body: { "checkpoint-id": null, savepoint: null, ...target }, first: ["roll-back-tables", "dry-run"],
    fields: () => html`<${Effect} path=${path} snapshot=${snapshot} />
      <label><input type="checkbox" required /> I have read what it does</label>`,
    text: "State and positions go back to this snapshot. Every file is verified before anything changes.",
  };
  return html`<button type="button" class="button" disabled=${Boolean(refusal(pipeline, "restore"))} title=${refusal(pipeline, "restore")} onClick=${() => setOpen(true)}>Restore</button>
    ${isOpen ? html`<${Ask} act=${act} path=${path} onClose=${() => setOpen(false)} />` : null}`;
}

/** Delete a savepoint; `onGone` is called when the person has read what became of it. */
export function Dispose({ path, pipeline, savepoint, onGone }) {
  const [isOpen, setOpen] = useState(false);
  const close = () => {
    setOpen(false);
    onGone();
  };
  const act = {
    name: "dispose", title: `Dispose of savepoint ${savepoint}`, does: `Delete savepoint ${savepoint}`, place: ["savepoint-disposal"],
    body: { "savepoint-name": savepoint }, isDangerous: true,
    fields: () => html`<label><input type="checkbox" required /> No other job begins from it, and none will</label>`,
    text: "Its files are deleted, for good. What this job still needs is not: then it is refused, and says why.",
    done: `Savepoint ${savepoint} is deleted.`,
  };
  return html`<button type="button" class="button" disabled=${Boolean(refusal(pipeline, "dispose"))} title=${refusal(pipeline, "dispose")} aria-label="Dispose of savepoint ${savepoint}" onClick=${() => setOpen(true)}>Dispose</button>
    ${isOpen ? html`<${Ask} act=${act} path=${path} onClose=${close} />` : null}`;
}

/** What a restore does, by names and sizes: what repeats, what goes back, what is lost. */
function Effect({ path, snapshot }) {
  const { data, problem } = useResource(withQuery(path("restore"), { from: snapshot.savepoint ?? String(snapshot.id) }), { everyMs: 0 });
  const { problems = [], tables = {}, tables_ahead: ahead = [] } = snapshot;
  const repeats = Object.entries(data?.repeats ?? {}).filter(([, many]) => many);
  const isChecked = snapshot.can_restore != null;
  return html`<div class=${snapshot.can_restore === false ? "problem" : "note"}>
    <strong>What it does${snapshot.can_restore ? ": nothing stands against it" : isChecked ? ": it would be refused" : ", not checked yet"}</strong>
    ${problems.map((one) => html`<p class="reason">${one}</p>`)}
    <${ProblemNote} problem=${problem} />
    <dl class="effect">
      <dt>Repeats</dt><dd>${data ? repeats.length || data.pending_records
        ? [...repeats.map(([source, many]) => `${count(many)} records of ${source}`),
          ...(data.pending_records ? [`${count(data.pending_records)} records of pending checkpoints`] : [])].join(", ")
        : "no record of a completed checkpoint" : "…"}</dd>
      ${data?.aborts.length ? html`<dt>Aborts</dt><dd>checkpoint ${data.aborts.join(", ")}</dd>` : null}
      ${Object.keys(tables).filter((sink) => !ahead.some((one) => one.sink === sink)).map((sink) => html`<dt>Table ${sink}</dt><dd>stays as it is</dd>`)}
      ${ahead.map((one) => html`<dt>Table ${one.sink}</dt><dd>${becomes(one)}</dd>`)}
      <dt>Lost</dt><dd>${problems.length ? "what is named above" : "nothing: what was read since is read again"}</dd>
    </dl></div>`;
}

/** What becomes of a table that shows later checkpoints. */
function becomes({ checkpoints, can_roll_back: canRollBack, rolls_back_by_itself: byItself }) {
  const shows = `shows ${count(checkpoints.length)} later checkpoint${checkpoints.length === 1 ? "" : "s"}`;
  if (byItself) return `${shows}; the next commit takes them back, rolling tables back does so at once`;
  return canRollBack ? `${shows}, whose rows come twice unless tables are rolled back` : `${shows}, whose rows come twice: it cannot go back`;
}

/** The dialog that asks before *act* is posted. */
export function Ask({ act, path, onClose, onDone = () => {} }) {
  const dialog = useRef(null);
  const [told, setTold] = useState({});
  const { data, problem } = useResource(act.name ? "acts" : null, { everyMs: 0 });
  const isReady = Boolean(data) || !act.name;
  const [isDry, setDry] = useState(false);
  const look = (event) => setDry(Boolean(event.currentTarget.elements.namedItem("dry-run")?.checked));
  const does = isDry && act.doesDry ? act.doesDry : act.does;
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
    <form onSubmit=${send} onChange=${look}>
      <p>${act.text}</p>
      ${told.answer ? html`<${Done} act=${act} answer=${told.answer} path=${path} />` : html`<${Fields} act=${act} offered=${data?.acts} />${act.fields?.()}`}
      <${ProblemNote} problem=${told.problem ?? problem} />
      <div class="actions">
        <button type="button" class="button" onClick=${() => dialog.current.close()}>${told.answer ? "Close" : "Not now"}</button>
        ${told.answer ? null : html`<button type="submit" class="button ${act.isDangerous && does === act.does ? "danger" : "primary"}" disabled=${told.isSent || !isReady}>${does}</button>`}
      </div>
    </form>
  </dialog>`;
}

/** What may be said of *act*, but for what its body says already. */
function Fields({ act: { name, first = [], body = {} }, offered }) {
  const fields = (offered?.find((one) => one.name === name)?.fields ?? []).filter((one) => !(one.name in body));
  const rest = fields.filter((one) => !first.includes(one.name));
  const shown = (some) => some.map((field) => html`<${Said} key=${field.name} field=${field} />`);
  return html`${shown(fields.filter((one) => first.includes(one.name)))}
    ${rest.length ? html`<details><summary>More</summary>${shown(rest)}</details>` : null}`;
}

/** A field, empty as the server takes it where nothing is said. */
function Said({ field: { name, kind, label, says, choices, default: usual } }) {
  if (kind === "flag") {
    return html`<label><input type="checkbox" name=${name} defaultChecked=${usual} /> ${label}: ${says}</label>`;
  }
  if (kind === "choice") {
    return html`<label>${label} <select name=${name}>${choices.map((one) => html`<option selected=${one === usual}>${one}</option>`)}</select>
      <span class="muted">${says}</span></label>`;
  }
  const hint = kind === "parameters" ? `${says} As name=value, with blanks between.` : says;
  return html`<label>${label} <input name=${name} data-kind=${kind} pattern=${PATTERNS[kind]} /> <span class="muted">${hint}</span></label>`;
}

const PATTERNS = { name: "[A-Za-z0-9_.\\-]{1,128}", id: "[0-9]+", count: "[0-9]+", period: "[0-9]+", parameters: "(\\s*[^\\s=]+=\\S*)*\\s*" };

function bodyOf({ body = {}, bodyOf: made }, form) {
  if (made) return made(form);
  const named = [...form.elements].filter(({ name }) => name).map((one) => [one.name, valueOf(one)]);
  return { ...body, ...Object.fromEntries(named.filter(([, value]) => value != null)) };
}

/** What is said in *element*; null where that is nothing. */
function valueOf({ type, checked, value, dataset }) {
  const text = value.trim();
  if (type === "checkbox") return checked;
  if (!text) return null;
  if (["id", "count", "period"].includes(dataset.kind)) return Number(text);
  return dataset.kind === "parameters" ? Object.fromEntries(text.split(/\s+/).map((one) => one.split(/=(.*)/s).slice(0, 2))) : text;
}

function Done({ act, answer, path }) {
  const { data } = useResource(answer.run ? path("requests", answer["request-id"]) : null);
  return html`<p role="status">${answer.run
    ? html`Started: <a href=${answer.run}>run ${answer["request-id"]}</a> is ${data ? html`<strong>${data.status}</strong>: ${data.says}` : "asked for its outcome."}`
    : act.doneOf?.(answer) ?? act.done ?? "Done."}</p>`;
}
