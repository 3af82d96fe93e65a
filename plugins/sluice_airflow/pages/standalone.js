/** The pages in a window of their own: `pages/?dag=ID` is the tab of a DAG. */

import { mount } from "./app.js";

mount(document.getElementById("pages"), { dagId: new URLSearchParams(location.search).get("dag") });
