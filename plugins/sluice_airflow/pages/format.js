/** Sizes, durations, counts and moments as people read them; decimal units, as in Flink's UI. */

const ABSENT = "–";
const END_OF_INPUT = 9.2e18;
const UNITS = [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]];
const numbers = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });

export const isAbsent = (value) => value === null || value === undefined;

export function size(bytes) {
  if (isAbsent(bytes)) return ABSENT;
  const [unit, factor] = UNITS.find(([, least]) => bytes >= least) ?? ["B", 1];
  return factor === 1 ? `${Math.round(bytes)} B` : `${(bytes / factor).toFixed(1)} ${unit}`;
}

export function duration(ms) {
  if (isAbsent(ms)) return ABSENT;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  const parts = [[86_400, "d"], [3_600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([length]) => seconds >= length);
  const [long, longName] = parts[first];
  const rest = parts[first + 1];
  const more = rest ? Math.floor((seconds % long) / rest[0]) : 0;
  return `${Math.floor(seconds / long)} ${longName}${more ? ` ${more} ${rest[1]}` : ""}`;
}

export const count = (value) => (isAbsent(value) ? ABSENT : numbers.format(value));

/** A rate: rows, or with *show* bytes, per second. */
export function perSecond(value, show = count) {
  if (isAbsent(value)) return ABSENT;
  return value > 0 && value < 0.05 && show === count ? "< 0.1/s" : `${show(value)}/s`;
}

/** What waits in a source, in what it can count; "unknown" where it cannot. */
export function pending(source) {
  const least = source.pending_is_least ? "at least " : "";
  const { pending_records: records, pending_bytes: bytes, pending_splits: files } = source;
  if (!isAbsent(records)) return `${least}${count(records)} record${records === 1 ? "" : "s"}`;
  if (isAbsent(bytes)) return "unknown";
  return `${least}${size(bytes)}${isAbsent(files) ? "" : ` in ${count(files)} file${files === 1 ? "" : "s"}`}`;
}

/** The time zone that this person chose in Airflow; UTC otherwise, as notes and logs are. */
export function timeZone() {
  const chosen = (globalThis.localStorage?.getItem("timezone") ?? "").replaceAll('"', "");
  try {
    return new Intl.DateTimeFormat("en", { timeZone: chosen || "UTC" }).resolvedOptions().timeZone;
  } catch {
    return "UTC";
  }
}

const formats = new Map();

function formatOf(zone) {
  if (!formats.has(zone)) {
    formats.set(zone, new Intl.DateTimeFormat("sv-SE", {
      timeZone: zone, year: "numeric", month: "2-digit", day: "2-digit",
      hour: "2-digit", minute: "2-digit", second: "2-digit",
    }));
  }
  return formats.get(zone);
}

export const moment = (at) => (isAbsent(at) ? ABSENT : formatOf(timeZone()).format(at));

export function watermark(at) {
  if (isAbsent(at)) return ABSENT;
  if (at >= END_OF_INPUT) return "end of input";
  return at <= -END_OF_INPUT ? "none yet" : moment(at);
}

export const timeOfDay = (at) => moment(at).slice(11, 16);

/** Who asked for a checkpoint; the schedule is nobody. */
export function asked(cause, before = ", ") {
  if (!cause) return "";
  return `${before}${cause === "periodic" ? "triggered by the schedule" : `asked for by ${cause}`}`;
}

/** How long ago a moment is; never less than none, as it may be of another machine's clock. */
export const sinceThen = (at, now) => Math.max(0, now - at);

export const ago = (at, now) => (isAbsent(at) ? ABSENT : `${duration(sinceThen(at, now))} ago`);

/** CHECKPOINT_EXPIRED as a person says it: "checkpoint expired". */
export const words = (name) => String(name ?? "").toLowerCase().replaceAll("_", " ");
