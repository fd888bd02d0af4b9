// The page of `shoal serve`: a chat with the model and a live view of the server. Text of both only becomes text
// nodes; nothing here parses HTML. The page works under a policy without inline scripts and styles: bars set their
// sizes through the CSSOM. Sections: elements, requests, Markdown, messages, chat and settings, server view, start.

const kPollMs = 1000;
const kSlowestPollMs = 30_000;
const kStatusTimeoutMs = 10_000;
const kHistoryLength = 120;

// Elements

const byId = (id) => document.getElementById(id);

/** Creates an element. Strings among the children become text nodes. */
function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

const button = (label, onclick) => element("button", { type: "button", onclick }, label);

/** A horizontal bar of parts [class, size]. Screen readers read `label`. */
function bar(label, parts) {
  const node = element("div", { className: "bar", role: "img", ariaLabel: label });
  for (const [className, size] of parts) {
    node.append(element("span", { className }));
    node.lastChild.style.flexGrow = size;
  }
  return node;
}

const colorOfDevice = (index) => `device-${index % 6}`;
const formatCount = (count) => count.toLocaleString("en");
const formatCompact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 }).format;
const formatRate = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 }).format;
const formatPercent = (fraction) => `${formatRate(fraction * 100)}\u00a0%`;
const formatHours = (seconds) => `${Math.floor(seconds / 3600)} h ${Math.floor(seconds / 60) % 60} min`;

function formatBytes(bytes) {
  const unit = Math.min(Math.floor(Math.log2(Math.max(bytes, 1)) / 10), 4);
  return `${formatRate(bytes / 1024 ** unit)}\u00a0${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

// Requests

let keyPrompt = null;  // Promise of the open key dialog.
let keyDeclined = false;  // Polling asks for a key only until the dialog is cancelled.

/** Sends a request with the API key, asks for the key after a 401, and throws the server's message on errors. */
async function request(path, options = {}) {
  const key = sessionStorage.getItem("shoal.key");
  const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
  const signal = options.signal ?? AbortSignal.timeout(kStatusTimeoutMs);
  const response = await fetch(path, { ...options, headers, signal }).catch(throwNoAnswer);
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({}));
  const message = error?.message ?? `The server answered with status ${response.status}.`;
  if (response.status !== 401) throw new Error(message);
  if (sessionStorage.getItem("shoal.key") !== key || (await askForKey(message))) return request(path, options);
  throw new Error(message);
}

/** Replaces the browser's network errors, which name no cause. */
const throwNoAnswer = () => Promise.reject(new Error("The server does not answer."));

/** Shows the key dialog and returns whether the user entered a key. Concurrent calls share one dialog. */
function askForKey(message) {
  const dialog = byId("key-dialog");
  if (dialog.open) return keyPrompt;
  byId("key-message").textContent = message;
  byId("key").value = dialog.returnValue = "";
  dialog.showModal();
  return (keyPrompt = new Promise((resolve) => {
    dialog.onclose = () => {
      keyDeclined = dialog.returnValue !== "save";
      if (!keyDeclined) sessionStorage.setItem("shoal.key", byId("key").value);
      resolve(!keyDeclined);
    };
  }));
}

/** Yields the objects of a server-sent event stream up to "[DONE]". */
async function* readEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch(throwNoAnswer);
    if (done) throw new Error("The connection closed before the answer was complete.");
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") return;
      if (line.startsWith("data:")) yield JSON.parse(line.slice("data:".length));
    }
  }
}

// Markdown: a subset, rendered block by block

const kBlocks = [
  /^[ \t]*```(?!.*`)[ \t]*(?<language>\S*).*\n?(?<code>[^]*?)(?:^[ \t]*```[ \t]*$|(?![^]))/,
  /^(?<marks>#{1,6})[ \t]+(?<title>.*)/,
  /(?<list>(?:^[ \t]*(?:[-*+]|\d+[.)])[ \t].*\n*)+)/,
  /(?<text>(?:^(?![ \t]*(?:```(?!.*`)|[-*+][ \t]|\d+[.)][ \t])|#{1,6}[ \t]).*\S.*\n?)+)/,
];
const kBlock = new RegExp(kBlocks.map((block) => block.source).join("|"), "gm");
const kItem = /^([ \t]*)(?:[-*+]|(\d+)[.)])[ \t]+(.*)$/gm;
const kInline = /`(?<code>[^`]+)`|\*\*(?<strong>\S.*?)\*\*|(?<![\w*])\*(?<em>[^\s*][^*\n]*)\*(?![\w*])/g;
const sources = new WeakMap();  // Source of each rendered block.

/** Renders `text` into `container`. Blocks that are unchanged since the last call keep their elements. */
function renderMarkdown(container, text) {
  const blocks = [...text.matchAll(kBlock)];
  while (container.children.length > blocks.length) container.lastChild.remove();
  blocks.forEach((block, index) => {
    const old = container.children[index];
    if (old && sources.get(old) === block[0]) return;
    const node = buildBlock(block.groups);
    sources.set(node, block[0]);
    old ? old.replaceWith(node) : container.append(node);
  });
}

function buildBlock({ language, code, marks, title, list, text }) {
  if (code !== undefined) return buildCode(code.trimEnd(), language);
  if (marks) return element(`h${Math.min(marks.length + 2, 6)}`, {}, ...inlineNodes(title));
  if (list) return buildList(list);
  if (/^\s*([-*_] *){3,}$/.test(text)) return element("hr");
  if (text.startsWith("|")) return element("pre", { tabIndex: 0 }, text.trim());
  return element("p", {}, ...inlineNodes(text.trim()));
}

function buildCode(text, language) {
  const code = element("code", {}, text);
  const copy = button("Copy", () => copyText(code, copy));
  const title = element("div", { className: "code-title" }, element("span", {}, language || "code"), copy);
  return element("div", { className: "code" }, title, element("pre", { tabIndex: 0 }, code));
}

/** The clipboard needs a secure origin. Elsewhere the text is selected for the copy key. */
async function copyText(node, label) {
  try {
    await navigator.clipboard.writeText(node.textContent);
    label.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(node);
    label.textContent = "Selected: press Ctrl+C";
  }
}

/** Builds nested lists from the indentation of the items. Numbered items have a value. */
function buildList(text) {
  const levels = [];  // Open lists, outermost first.
  for (const [, space, number, title] of text.matchAll(kItem)) {
    while (levels.length > 1 && space.length < levels.at(-1).indent) levels.pop();
    if (!levels.length || space.length > levels.at(-1).indent) {
      const list = element("ul");
      levels.at(-1)?.list.lastChild.append(list);
      levels.push({ list, indent: space.length });
    }
    levels.at(-1).list.append(element("li", number ? { value: Number(number) } : {}, ...inlineNodes(title)));
  }
  return levels[0].list;
}

/** Strings and elements for text with `code`, **strong** and *emphasis*. */
function inlineNodes(text) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(kInline)) {
    const { code, strong, em } = match.groups;
    const node = code ? element("code", {}, code) : element(strong ? "strong" : "em", {}, ...inlineNodes(strong ?? em));
    nodes.push(text.slice(end, match.index), node);
    end = match.index + match[0].length;
  }
  return [...nodes, text.slice(end)];
}

// Messages

/** A message of the conversation together with its elements. */
class Message {
  constructor(role, text = "") {
    Object.assign(this, { role, text, reasoning: "", toolCalls: [], error: "", note: "", finish: "", usage: null });
    Object.assign(this, { startTime: performance.now(), firstTokenTime: 0, lastTokenTime: 0 });
    this.thought = element("pre", { tabIndex: 0 });
    this.details = element("details", { open: true }, element("summary", {}, "Reasoning"), this.thought);
    this.body = element("div", { className: "text" });
    this.calls = element("div");
    this.errorLine = element("p", { className: "error" });
    this.noteLine = element("span", { className: "muted" });
    this.actions = element("div", { className: "actions" }, this.noteLine);
    const author = element("h2", {}, role === "user" ? "You" : "Model");
    const parts = [author, this.details, this.body, this.calls, this.errorLine, this.actions];
    this.node = element("article", { className: `message ${role}` }, ...parts);
    this.render();
  }

  render() {
    this.details.hidden = !this.reasoning;
    if (this.thought.textContent !== this.reasoning) this.thought.textContent = this.reasoning;
    if (this.role === "user") this.body.textContent = this.text;
    else renderMarkdown(this.body, this.text);
    const calls = this.toolCalls.map((call) => `Tool call: ${call.name}(${call.arguments})`);
    this.calls.replaceChildren(...calls.map((text) => element("pre", { tabIndex: 0 }, text)));
    this.errorLine.textContent = this.error;
    this.noteLine.textContent = this.note;
  }

  /** Adds a chunk of a streamed chat completion. */
  take(chunk) {
    if (chunk.error) throw new Error(chunk.error.message);
    this.usage = chunk.usage ?? this.usage;
    const { delta, finish_reason: finish } = chunk.choices?.[0] ?? {};
    if (finish === "length") this.finish = "cut at the token limit";
    const { content, reasoning_content: reasoning, tool_calls: toolCalls } = delta ?? {};
    if (!content && !reasoning && !toolCalls) return;
    this.lastTokenTime = performance.now();
    this.firstTokenTime ||= this.lastTokenTime;
    if (content && !this.text) this.details.open = false;
    this.text += content ?? "";
    this.reasoning += reasoning ?? "";
    for (const { index = 0, function: part } of toolCalls ?? []) {
      const call = (this.toolCalls[index] ??= { name: "", arguments: "" });
      call.name += part?.name ?? "";
      call.arguments += part?.arguments ?? "";
    }
  }

  /** Tokens, rate and cached tokens of a finished answer. */
  summary() {
    const parts = this.finish ? [this.finish] : [];
    if (this.usage) {
      const { completion_tokens: tokens, prompt_tokens: prompt, prompt_tokens_details: details } = this.usage;
      const seconds = (this.lastTokenTime - this.firstTokenTime) / 1000;
      parts.push(`${formatCount(tokens)} tokens`);
      if (tokens > 1 && seconds > 0) parts.push(`${formatRate((tokens - 1) / seconds)} tokens/s`);
      parts.push(`${formatCount(details?.cached_tokens ?? 0)} of ${formatCount(prompt)} prompt tokens cached`);
    }
    const wait = (this.firstTokenTime - this.startTime) / 1000;
    if (this.firstTokenTime) parts.push(`first token after ${wait.toFixed(2)} s`);
    return parts.join(" · ");
  }
}

// Chat and settings

const log = byId("log");
const promptField = byId("prompt");
const editButton = button("Edit", editLast);
const regenerateButton = button("Regenerate", regenerate);
const messages = [];  // Pairs of a question and its answer.
let abort = null;  // Controller of the running request.
let frame = 0;  // Pending animation frame: an answer is rendered once per frame.

function addMessage(message) {
  byId("welcome").hidden = true;
  messages.push(message);
  log.append(message.node);
  log.scrollTop = log.scrollHeight;
  return message;
}

function removeMessagesFrom(index) {
  for (const message of messages.splice(index)) message.node.remove();
  byId("welcome").hidden = messages.length > 0;
  promptField.focus();
}

/** Renders and keeps the end in view, except if the user scrolled up. */
function renderMessage(message) {
  const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  frame = 0;
  message.render();
  if (isAtEnd) log.scrollTop = log.scrollHeight;
}

function requestBody() {
  const { system, ...sampling } = loadSettings();
  const history = messages.map(({ role, text }) => ({ role, content: text }));
  if (system) history.unshift({ role: "system", content: system });
  const options = { stream: true, stream_options: { include_usage: true } };
  return JSON.stringify({ ...(modelName && { model: modelName }), messages: history, ...sampling, ...options });
}

/** Requests the answer to the conversation and shows it as it arrives. */
async function generate() {
  const body = requestBody();
  const answer = addMessage(new Message("assistant"));
  const controller = new AbortController();
  showBusy(controller);
  keyDeclined = false;
  try {
    const headers = { "Content-Type": "application/json" };
    const options = { method: "POST", headers, body, signal: controller.signal };
    for await (const chunk of readEvents(await request("v1/chat/completions", options))) {
      answer.take(chunk);
      frame ||= requestAnimationFrame(() => renderMessage(answer));
    }
  } catch (error) {
    if (controller.signal.aborted) answer.finish = "stopped";
    else answer.error = error.message;
  }
  controller.abort();  // Closes the connection after an error in the stream.
  answer.note = answer.summary();
  renderMessage(answer);
  showBusy(null);
}

/** Shows Stop while a request runs. Else shows Send and the actions of the last messages. */
function showBusy(controller) {
  abort = controller;
  if (document.activeElement.closest("#composer")) promptField.focus();
  log.ariaBusy = String(controller !== null);
  byId("send").hidden = controller !== null;
  byId("stop").hidden = controller === null;
  editButton.remove();
  regenerateButton.remove();
  if (!controller && messages.length) {
    messages.at(-2).actions.append(editButton);
    messages.at(-1).actions.append(regenerateButton);
  }
}

function send(event) {
  event.preventDefault();
  const text = promptField.value.trim();
  if (!text || abort) return;
  promptField.value = "";
  addMessage(new Message("user", text));
  generate();
}

/** Moves the last message of the user back into the field. */
function editLast() {
  promptField.value = messages.at(-2).text;
  removeMessagesFrom(messages.length - 2);
  showBusy(null);
}

function regenerate() {
  removeMessagesFrom(messages.length - 1);
  generate();
}

function newChat() {
  abort?.abort();
  removeMessagesFrom(0);
}

function onPromptKey(event) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  byId("composer").requestSubmit();
}

/** Settings {system, temperature, top_p, max_tokens, seed}. Empty settings are absent. */
const loadSettings = () => JSON.parse(localStorage.getItem("shoal.settings")) ?? {};

function openSettings() {
  const dialog = byId("settings-dialog");
  const settings = loadSettings();
  for (const field of byId("settings").elements) if (field.name) field.value = settings[field.name] ?? "";
  dialog.returnValue = "";
  dialog.showModal();
}

function closeSettings() {
  if (byId("settings-dialog").returnValue !== "save") return;
  const fields = [...new FormData(byId("settings"))].filter(([, value]) => value !== "");
  const settings = fields.map(([name, value]) => [name, name === "system" ? value : Number(value)]);
  localStorage.setItem("shoal.settings", JSON.stringify(Object.fromEntries(settings)));
}

// Server view

const histories = { generation: [], prompt: [] };
let modelName = "";
let pollTimer = 0;
let pollDelay = kPollMs;

/** Polls the status. Errors double the delay; a hidden page does not poll. */
async function poll() {
  try {
    if (keyDeclined) throw new Error("The server needs an API key.");
    showStatus(await (await request("status")).json());
    pollDelay = kPollMs;
    showProblem("");
  } catch (error) {
    pollDelay = keyDeclined ? kPollMs : Math.min(pollDelay * 2, kSlowestPollMs);
    showProblem(error.message);
  }
  clearTimeout(pollTimer);
  if (!document.hidden) pollTimer = setTimeout(poll, pollDelay);
}

/** Changes the text only if it differs, because screen readers announce each change. */
function showProblem(text) {
  if (byId("problem").textContent !== text) byId("problem").textContent = text;
}

function showStatus(status) {
  showModel(status);
  showRate("generation", status.rates.generation);
  showRate("prompt", status.rates.prompt);
  showQueue(status.requests, status.cache);
  showDevices(status.devices);
}

function showFacts(list, facts) {
  const pairs = Object.entries(facts).map(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]);
  list.replaceChildren(...pairs.flat());
}

function showModel({ model, uptime, version }) {
  modelName = model.name;
  byId("model-name").textContent = model.name;
  document.title = `${model.name} – shoal`;
  showFacts(byId("model-facts"), {
    Name: model.name,
    Architecture: model.architecture,
    Size: `${formatCompact(model.parameters)} parameters, ${formatBytes(model.bytes)}`,
    Context: `${formatCount(model.context)} tokens`,
    Program: `shoal ${version}, up for ${formatHours(uptime)}`,
  });
}

function showRate(name, rate) {
  const history = histories[name];
  history.push(rate);
  if (history.length > kHistoryLength) history.shift();
  const peak = Math.max(...history, 1e-9);
  const first = kHistoryLength - history.length;
  const points = history.map((value, index) => `${first + index},${(31 - 30 * (value / peak)).toFixed(2)}`);
  byId(`${name}-rate`).textContent = formatRate(rate);
  byId(`${name}-history`).setAttribute("points", `${first},32 ${points.join(" ")} ${kHistoryLength - 1},32`);
}

function showQueue(requests, { tokens, used, hit_rate: hitRate }) {
  const usedTokens = `${formatCount(used)} of ${formatCount(tokens)} tokens`;
  showFacts(byId("queue-facts"), {
    Running: `${requests.running} of ${requests.limit}`,
    Waiting: formatCount(requests.waiting),
    "Cache hits": formatPercent(hitRate),
    "Cache in use": usedTokens,
  });
  byId("cache-bar").replaceChildren(bar(`Cache: ${usedTokens}`, [["cache", used], ["free", tokens - used]]));
}

function showDevices(devices) {
  const label = devices.map(({ name, share }) => `${name} ${formatPercent(share)}`).join(", ");
  const shares = devices.map(({ share }, index) => [colorOfDevice(index), share]);
  byId("share-bar").replaceChildren(bar(`Shares: ${label}`, shares));
  byId("devices").replaceChildren(...devices.map(deviceItem));
}

function deviceItem(device, index) {
  const { name, description, share, weights, cache, compute, free, total } = device;
  const other = Math.max(total - free - weights - cache - compute, 0);
  const memory = `weights ${formatBytes(weights)}, cache ${formatBytes(cache)}, compute ${formatBytes(compute)}, `
    + `free ${formatBytes(free)} of ${formatBytes(total)}`;
  const color = element("i", { className: colorOfDevice(index) });
  return element("li", {},
    element("h3", {}, color, name, element("b", {}, formatPercent(share))),
    element("p", { className: "muted" }, description),
    bar(`Memory of ${name}: ${memory}`, Object.entries({ weights, cache, compute, other, free })),
    element("p", { className: "muted" }, memory));
}

async function showPlan() {
  const readText = (response) => response.text();
  if (byId("plan").open) byId("plan-text").textContent = await request("plan").then(readText, (error) => error.message);
}

function showPanel(isVisible) {
  byId("panel").hidden = !isVisible;
  byId("toggle-panel").ariaExpanded = String(isVisible);
}

// Start

const narrow = matchMedia("(max-width: 60rem)");
const listen = (id, type, handler) => byId(id).addEventListener(type, handler);
listen("composer", "submit", send);
listen("prompt", "keydown", onPromptKey);
listen("stop", "click", () => abort?.abort());
listen("new-chat", "click", newChat);
listen("open-settings", "click", openSettings);
listen("settings-dialog", "close", closeSettings);
listen("toggle-panel", "click", () => showPanel(byId("panel").hidden));
listen("plan", "toggle", showPlan);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) abort?.abort();
});
document.addEventListener("visibilitychange", () => document.hidden || poll());
narrow.addEventListener("change", () => showPanel(!narrow.matches));
showPanel(!narrow.matches);
poll();
