import { render } from "preact";
import { App } from "./app";
import { start } from "./state";
import "./style.css";

render(<App />, document.getElementById("app")!);
void start();
