/** What Airflow loads: a React component that gives its place to our pages (`react_apps`). */

import { mount } from "./app.js";

const { createElement, useEffect, useRef } = globalThis.React;

function Checkpoints({ dagId }) {
  const host = useRef(null);
  useEffect(() => mount(host.current, { dagId }), [dagId]);
  return createElement("div", { ref: host, style: { height: "100%", overflow: "auto" } });
}

// Airflow looks for a component under the name of the plugin's entry, for the tab and for the navigation.
globalThis.Checkpoints = Checkpoints;
