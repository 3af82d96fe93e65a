/** What is asked first at night: the state and since when, the newest checkpoint's age, the lag, the next step; and who drives the job. */

import { useResource } from "../api.js";
import { duration, isAbsent, pending, words } from "../format.js";
import { html } from "../html.js";
import { Link, Moment } from "../parts.js";

/** Of a job that has ended, or was stopped, nobody is to drive it. */
const GOING = ["CREATED", "RUNNING", "RESTARTING", "FAILING"];

export function Health({ uid, path, pipeline, now }) {
  const { health, status, last_completed: done, lag = [] } = pipeline;
  const next = useResource(health?.is_late ? path("next") : null, { everyMs: 10_000 });
  const isGoing = GOING.includes(status);
  const { data: drivers } = useResource(isGoing ? path("drivers") : null, { everyMs: 5_000 });
  if (!health) return null;
  const problems = drivers?.problems ?? [];
  const late = drivers?.processes.filter((one) => one.state === "late").length ?? 0;
  const { tone, says, since, age_ms: age, target_age_ms: target, is_late: isLate, next_step: step } = health;
  const behind = lag.filter((one) => one.is_behind);
  return html`<section class="first" aria-label="What matters first">
    <dl class="counts">
      <div class=${tone}><dt>State</dt><dd>${words(status)}</dd>
        <dd class="more"><p class=${tone === "bad" ? "reason" : ""}>${says}</p>
        ${isAbsent(since) ? null : html`<p class="muted">since <${Moment} at=${since} now=${now} /></p>`}</dd></div>
      <div class=${isLate ? "warn" : ""}><dt>Newest completed checkpoint</dt>
        <dd>${isAbsent(age) ? "none yet" : `${duration(age)} old`}</dd>
        <dd class="more"><p class="muted">${done ? html`<${Link} to=${["p", uid, "checkpoints", done.id]}>checkpoint ${done.id}<//>` : isAbsent(age) ? null : "not retained"}${
          isGoing && !isAbsent(target) ? ` · target: ${duration(target)} at most` : ""}</p>
        ${next.data ? html`<p>${next.data.is_due ? "The next one is due" : "The next one waits"}: ${next.data.says}</p>` : null}</dd></div>
      <div class=${behind.length ? "warn" : ""}><dt>Lag</dt>
        <dd>${!lag.length ? (isGoing ? "unknown" : "–") : behind.length ? `${behind.length} of ${lag.length} sources behind` : "none"}</dd>
        <dd class="more">${lag.map((one) => html`<p key=${one.id} class=${one.is_behind ? "" : "muted"}>${one.id}: ${pending(one)}</p>`)}</dd></div>
      <div class=${problems.length ? (problems.length > late ? "bad" : "warn") : step ? tone : ""}><dt>Next step</dt><dd>${step || problems.length ? "" : "none"}</dd>
        ${problems.length ? html`<dd class="more"><div role="alert">${problems.map((one) => html`<p key=${one}>${one}</p>`)}</div></dd>` : null}
        ${step ? html`<dd class="more"><p>${step.page.length ? html`<${Link} to=${placeOf(uid, step.page)}>${step.says}<//>` : step.says}</p>
          ${step.command ? html`<p><code>${step.command}</code></p>` : null}</dd>` : null}</div>
    </dl>
    ${drivers ? html`<${Driven} by=${drivers} now=${now} />` : null}
  </section>`;
}

/** A page of the pipeline, or the one of a failure's reason. */
const placeOf = (uid, page) => (page[0] === "reasons" ? page : ["p", uid, ...page]);

/** Airflow alone is asked, so it is seen without the store, and what is in the way with its cure. */
export function Drivers({ path, now }) {
  const { data: drivers } = useResource(path("drivers"), { everyMs: 5_000 });
  if (!drivers) return null;
  const { problems } = drivers;
  return html`<div>
    ${problems.length ? html`<div class="problem" role="alert">${problems.map((one) => html`<p key=${one}>${one}</p>`)}</div>` : null}
    <${Driven} by=${drivers} now=${now} />
  </div>`;
}

function Driven({ by: { processes, newest_run: run }, now }) {
  const heard = processes.filter((one) => !isAbsent(one.silent_ms));
  return html`<p class="muted">Driven by Airflow: ${heard.map((one) => html`<span key=${one.name}>${one.name} heard ${duration(one.silent_ms)} ago; </span>`)}
      ${run ? html`<a href=${run.run}>newest run</a> ${run.state}${isAbsent(run.start_timestamp) ? "" : html`, began <${Moment} at=${run.start_timestamp} now=${now} />`}` : "no run yet"}</p>`;
}
