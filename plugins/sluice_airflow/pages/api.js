/** The REST routes below /sluice/api/v1, asked again for as long as somebody looks. */

import { useCallback, useEffect, useRef, useState } from "./vendor/preact-hooks.js";

const API = import.meta.url.replace(/\/pages\/.*$/, "/api/v1/");
const OFTEN_MS = 3_000;
const SELDOM_MS = 60_000;
const PATIENCE_S = 4;
const MOST_KEPT = 100;

/** The last answer of each path, which is shown while the store is slow. */
const kept = new Map();

/**
 * What a route answered instead of data: a problem+json's words, or why there was no answer. With
 * `againMs` the store is slow: what was asked is still being read, and is there when asked again.
 */
export class Problem extends Error {
  constructor({ status = 0, title = "", detail = "", againMs = 0 }) {
    super(detail || title);
    Object.assign(this, { status, title, detail, againMs });
  }
}

export const pathOf = (...names) => names.map(encodeURIComponent).join("/");

/** A list is given once for each of its values. */
export function withQuery(path, query) {
  const given = Object.entries(query)
    .flatMap(([name, values]) => [values].flat().map((value) => [name, value]))
    .filter(([, value]) => value !== "" && value != null);
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

async function asked(path, options = {}) {
  let answer;
  try {
    answer = await fetch(new URL(path, API), { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({ title: "Airflow's API server does not answer" });
  }
  const text = await answer.text();
  if (answer.ok) return text;
  throw problemOf(answer, text);
}

function problemOf(answer, text) {
  const againMs = 1_000 * Number(answer.headers.get("Retry-After") ?? 0);
  const about = { status: answer.status, title: answer.statusText, againMs };
  try {
    const said = JSON.parse(text);
    const detail = typeof said.detail === "string" ? said.detail : JSON.stringify(said.detail ?? "");
    return new Problem({ ...about, title: said.title ?? about.title, detail });
  } catch {
    return new Problem({ ...about, detail: text.slice(0, 300) });
  }
}

export async function post(path, body = {}) {
  const headers = { "Content-Type": "application/json" };
  const text = await asked(path, { method: "POST", headers, body: JSON.stringify(body) });
  return text ? JSON.parse(text) : {};
}

/**
 * What *path* answers, asked again every few seconds; after an error at growing distances, and never
 * while nobody looks. The last answer stays while a newer one is awaited. Without a path: nothing.
 */
export function useResource(path, { everyMs = OFTEN_MS } = {}) {
  const [shown, setShown] = useState({ path: null, data: null, problem: null });
  const again = useRef(() => {});

  useEffect(() => (path ? watched(path, everyMs, setShown, again) : undefined), [path, everyMs]);
  const reload = useCallback(() => again.current(), []);

  const isCurrent = shown.path === path;
  const problem = isCurrent ? shown.problem : null;
  const data = (isCurrent ? shown.data : null) ?? (problem?.againMs ? kept.get(path) : null) ?? null;
  return { data, problem, isLoading: Boolean(path) && !data && !(problem && !problem.againMs), reload };
}

function watched(path, everyMs, setShown, again) {
  const gone = new AbortController();
  let timer = 0;
  let last = "";
  let pauseMs = everyMs;

  async function ask() {
    clearTimeout(timer);
    let againMs = 0;
    try {
      const headers = { Prefer: `wait=${PATIENCE_S}` };
      const text = await asked(path, { signal: gone.signal, headers });
      pauseMs = everyMs;
      if (text !== last) {
        last = text;
        const data = JSON.parse(text);
        keep(path, data);
        setShown({ path, data, problem: null });
      } else {
        setShown((before) => (before.problem ? { ...before, problem: null } : before));
      }
    } catch (problem) {
      if (gone.signal.aborted) return;
      pauseMs = problem.againMs || Math.min(SELDOM_MS, pauseMs * 2);
      againMs = problem.againMs;
      setShown((before) => ({ path, data: before.path === path ? before.data : null, problem }));
    }
    if ((everyMs || againMs) && !gone.signal.aborted) timer = setTimeout(next, pauseMs);
  }

  const next = () => (document.hidden ? undefined : ask());
  const wake = () => (document.hidden || !everyMs ? undefined : ask());
  document.addEventListener("visibilitychange", wake);
  again.current = ask;
  ask();
  return () => {
    gone.abort();
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", wake);
  };
}

function keep(path, data) {
  kept.delete(path);
  kept.set(path, data);
  if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
}

/** The present moment, every second. */
export function useNow() {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1_000);
    return () => clearInterval(timer);
  }, []);
  return now;
}
