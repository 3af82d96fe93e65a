/** Where a person is: the part of the address behind `#`, so that each page has a link and a way back. */

import { useEffect, useState } from "./vendor/preact-hooks.js";

export function parsed(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const names = path ? path.split("/").map(decodeURIComponent) : [];
  return { names, query: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

/** An address in full: Airflow's page has a `<base>`, from which `#…` alone would lead away. */
export function addressOf(names, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value != null);
  const search = given.length ? `?${new URLSearchParams(given)}` : "";
  const path = names.map((name) => encodeURIComponent(name)).join("/");
  return `${location.pathname}${location.search}#/${path}${search}`;
}

export function useRoute() {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = () => setHash(location.hash);
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return parsed(hash);
}

export function go(names, query = {}) {
  location.hash = addressOf(names, query).split("#")[1];
}
