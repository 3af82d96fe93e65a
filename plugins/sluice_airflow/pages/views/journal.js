/** What the coordinator did, as a story: newest first, a sentence an entry. */

import { useResource, withQuery } from "../api.js";
import { asked, duration, moment, words } from "../format.js";
import { html } from "../html.js";
import { Badge, Empty, Link, Moment, Resource } from "../parts.js";

const PAGE = 50;

const STORY = {
  CheckpointTriggered: (one) => `Checkpoint ${one.checkpoint} was triggered`,
  CheckpointRequested: () => "A checkpoint was asked for, and waits in the queue",
  CheckpointCompleted: (one) => `Checkpoint ${one.checkpoint} completed: from here on it is true`,
  CheckpointCommitted: (one) => `Checkpoint ${one.checkpoint} was committed: every sink has published it`,
  CheckpointFailed: (one) => `Checkpoint ${one.checkpoint} was aborted`,
  AlignmentTimedOut: (one) => `Checkpoint ${one.checkpoint} went on unaligned`,
  AttemptStarted: (one) => `A stage of checkpoint ${one.checkpoint} was started again`,
  AcksReceived: () => "Subtasks acknowledged",
  DeclineReceived: (one) => `A subtask declined checkpoint ${one.checkpoint}`,
  TriggerFailed: () => "A checkpoint was refused, and not triggered",
  RequestWithdrawn: () => "A queued request was withdrawn: it needs no checkpoint",
  JobSubmitted: () => "The job was submitted",
  JobRestored: (one) => (one.checkpoint ? `The job was restored from ${one.checkpoint}` : "The job was restored from its empty state"),
  JobStopped: () => "The job was stopped",
  JobFailed: () => "The job failed",
  HooksRestored: () => "The hooks were restored",
  SavepointsReleased: () => "Claimed savepoints were released",
  SnapshotsDiscarded: () => "Snapshots that nothing needs were discarded",
  TablesRecovered: () => "The sinks' tables were recovered",
};

const TONES = {
  CheckpointCompleted: "good", CheckpointCommitted: "good", CheckpointFailed: "bad", JobFailed: "bad",
  DeclineReceived: "bad", TriggerFailed: "bad", AttemptStarted: "warn", AlignmentTimedOut: "warn", JobRestored: "busy",
};

export function Journal({ uid, path, query }) {
  const pages = query.pages ? query.pages.split(",") : [];
  const resource = useResource(withQuery(path("journal"), { limit: PAGE, before: pages.at(-1) }));
  const next = resource.data?.next;
  return html`<h2 tabindex="-1">Journal</h2>
    <${Resource} resource=${resource}>${({ entries }) => entries.length
      ? html`<ol class="story">${entries.map((one, index) => html`<${Entry} key=${one.seq} uid=${uid} one=${one} before=${entries[index + 1]} />`)}</ol>`
      : html`<${Empty} title="The journal is empty"><p>Its first entry is written when the job is submitted, with the DAG's first run.</p><//>`}<//>
    <nav class="pager" aria-label="Pages of the journal">
      ${pages.length ? html`<${Link} to=${["p", uid, "journal"]} query=${{ pages: pages.slice(0, -1).join(",") }}>← Newer<//>` : null}
      ${next ? html`<${Link} to=${["p", uid, "journal"]} query=${{ pages: [...pages, next].join(",") }}>Older →<//>` : null}
    </nav>`;
}

function Entry({ uid, one, before }) {
  const story = STORY[one.event]?.(one) ?? words(one.event.replace(/(?<=[a-z])(?=[A-Z])/g, "_"));
  const isNewStatus = before && before.status !== one.status;
  return html`<li class=${TONES[one.event] ?? ""}>
    <div class="when">${one.at_ms == null ? null : html`<${Moment} at=${one.at_ms} />`}<span class="muted"> #${one.seq}</span></div>
    <div>
      <p>${one.checkpoint == null ? story : html`<${Link} to=${["p", uid, "checkpoints", one.checkpoint]}>${story}<//>`}${sinceBefore(one, before)}</p>
      ${one.cause ? html`<p class="muted">${asked(one.cause, "")}</p>` : null}
      ${one.reason ? html`<p><${Link} to=${["reasons", one.reason]}>${words(one.reason)}<//></p>` : null}
      ${one.message ? html`<p>${one.message}</p>` : null}
      ${isNewStatus || one.event.startsWith("Job") ? html`<p>The job is <${Badge} status=${one.status} />, generation ${one.generation}</p>` : null}
    </div>
  </li>`;
}

/** Only a long silence is worth a word: what lies close together is one story. */
function sinceBefore(one, before) {
  if (one.at_ms == null || before?.at_ms == null || one.at_ms - before.at_ms < 60_000) return null;
  return html` <span class="muted" title="since ${moment(before.at_ms)}">after ${duration(one.at_ms - before.at_ms)}</span>`;
}
