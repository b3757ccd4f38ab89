import { render } from "preact";
import { App } from "./app";
import { markMissingFont } from "./math";
import { start } from "./state";
import "./style.css";

markMissingFont();
render(<App />, document.getElementById("app")!);
void start();
