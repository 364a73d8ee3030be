'use strict';
// The page: a chat over /v1/chat/completions, and a picture of /debug/memory.

const $ = (id) => document.getElementById(id);
const element = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === 'style') Object.assign(node.style, value);
    else if (name === 'class') node.className = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
};
const number = (n) => Math.round(n).toLocaleString('en');
const duration = (ms) => {
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  return ms < 60000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.round(ms / 60000)} min`;
};
const percent = (part, whole) => {
  const share = whole > 0 ? (100 * part) / whole : 0;
  return `${Math.max(0, Math.min(100, share))}%`;
};

const headers = () => {
  const key = $('key').value.trim();
  return key ? { Authorization: `Bearer ${key}` } : {};
};

// ---- chat

let conversation = [];
let inFlight = null;

function show(role, text = '') {
  document.querySelector('.hello')?.remove();
  const body = element('div', { class: 'text' }, text);
  const node = element('div', { class: `message ${role}` }, body);
  $('log').append(node);
  node.scrollIntoView({ block: 'end' });
  return { node, body };
}

// Calls `take` with each event's JSON.
async function readEvents(response, take) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let pending = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    pending += decoder.decode(value, { stream: true });
    let end;
    while ((end = pending.indexOf('\n\n')) >= 0) {
      const line = pending.slice(0, end);
      pending = pending.slice(end + 2);
      if (line.startsWith('data: ') && line !== 'data: [DONE]') take(JSON.parse(line.slice(6)));
    }
  }
}

async function ask(text) {
  conversation.push({ role: 'user', content: text });
  show('user', text);
  const { node, body } = show('assistant');
  body.classList.add('cursor');
  const system = $('system').value.trim();
  const messages = system ? [{ role: 'system', content: system }, ...conversation] : conversation;
  const started = performance.now();
  let first = 0, answer = '', thought = null, usage = null, problem = null;
  inFlight = new AbortController();
  $('send').textContent = 'Stop';
  try {
    const response = await fetch('v1/chat/completions', {
      method: 'POST',
      signal: inFlight.signal,
      headers: { 'Content-Type': 'application/json', ...headers() },
      body: JSON.stringify({
        model: $('model').textContent,
        messages,
        stream: true,
        stream_options: { include_usage: true },
        temperature: Number($('temperature').value),
        max_tokens: Number($('max').value) || 512,
      }),
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    await readEvents(response, (event) => {
      if (event.error) problem = event.error.message;
      if (event.usage) usage = event.usage;
      const delta = event.choices?.[0]?.delta;
      if (!delta) return;
      if ((delta.content || delta.reasoning_content) && !first) first = performance.now();
      if (delta.reasoning_content) {
        if (!thought) node.prepend((thought = element('div', { class: 'thought' })));
        thought.append(delta.reasoning_content);
      }
      if (delta.content) {
        answer += delta.content;
        body.replaceChildren(...renderMarkdown(answer));
      }
      const log = $('log');
      const below = log.scrollHeight - log.scrollTop - log.clientHeight;
      if (below < 120) log.scrollTop = log.scrollHeight;
    });
    if (problem) throw new Error(problem);
  } catch (error) {
    if (error.name !== 'AbortError') {
      node.classList.add('error');
      body.append(element('p', {}, error.message));
    }
  } finally {
    inFlight = null;
    $('send').textContent = 'Send';
    body.classList.remove('cursor');
  }
  if (answer) conversation.push({ role: 'assistant', content: answer });
  if (usage && first) {
    const rate = usage.completion_tokens / Math.max((performance.now() - first) / 1000, 0.001);
    const cached = usage.prompt_tokens_details?.cached_tokens || 0;
    node.append(element('span', { class: 'note' },
      `${number(usage.completion_tokens)} tokens, ${rate.toFixed(1)} a second, ` +
      `first after ${duration(first - started)}; ` +
      `${number(cached)} of ${number(usage.prompt_tokens)} prompt tokens from the cache`));
  }
  node.scrollIntoView({ block: 'end' });
}

$('form').addEventListener('submit', (event) => {
  event.preventDefault();
  if (inFlight) return inFlight.abort();
  const text = $('text').value.trim();
  if (!text) return;
  $('text').value = '';
  ask(text);
});
$('text').addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    if (!inFlight) $('form').requestSubmit();
  }
});
document.addEventListener('click', (event) => {
  if (event.target.classList.contains('idea')) ask(event.target.textContent);
});
$('clear').addEventListener('click', () => {
  inFlight?.abort();
  conversation = [];
  $('log').replaceChildren();
  $('text').focus();
});
for (const id of ['system', 'temperature', 'max', 'key']) {
  const stored = sessionStorage.getItem(id);
  if (stored !== null) $(id).value = stored;
  $(id).addEventListener('input', () => sessionStorage.setItem(id, $(id).value));
}

// ---- the cluster

// A strip of parts [class, amount]; what there is at all can be seen.
const bar = (parts, whole, thin) => element('div', { class: thin ? 'bar thin' : 'bar' },
  ...parts.filter(([, amount]) => amount > 0).map(([kind, amount]) =>
    element('i', { class: kind, style: { width: percent(amount, whole) } })));
const label = (left, right) => element('div', { class: 'label' },
  element('b', {}, left), element('span', {}, right));
const legend = (...items) => element('div', { class: 'legend' },
  ...items.map(([kind, text]) => element('span', { class: kind }, text)));

function memoryPart(instance) {
  const { total, granted, written, cached, free } = instance.blocks;
  return [
    label('KV memory', `${number(total)} blocks of ${instance.block_tokens} tokens`),
    bar([['written', written], ['granted', granted - written], ['cached', cached]], total),
    legend(['w', `${number(written)} written`],
      ['g', `${number(granted - written)} granted, not written yet`],
      ['c', `${number(cached)} kept prefixes`], ['f', `${number(free)} free`]),
  ];
}

function windowPart(instance) {
  const window = instance.window;
  if (!window.number) return [];
  const used = window.steps - window.steps_left;
  const running = instance.running.length > 0;
  const progress = `${used} of ${window.steps} steps, ${duration(window.length_ms)} long, ` +
    `bound by ${window.bound}`;
  return [
    label(`Window ${number(window.number)}`, running ? progress : 'idle'),
    bar([['written', running ? used : 0]], window.steps, true),
    legend(['plain', `${number(window.granted_blocks)} blocks granted at once`],
      ['plain', `${number(instance.windows.early_renewals)} early renewals`],
      ['plain', `likely peak ${number(window.peak_blocks)} blocks`]),
  ];
}

function devicePart(instance) {
  const { total_bytes: total, free_bytes: free } = instance.device;
  if (!total) return [];
  const gib = (bytes) => `${(bytes / 2 ** 30).toFixed(1)} GiB`;
  return [
    label("The device's memory, of all processes", `${gib(total - free)} of ${gib(total)}`),
    bar([['cached', total - free]], total, true),
  ];
}

function outlookPart(instance) {
  const points = instance.outlook.filter((point) => point.in_ms > 0);
  if (!points.length || !instance.running.length) return [];
  const total = instance.blocks.total;
  const most = Math.max(...points.map((point) => point.demand_blocks));
  // Of all memory when a good part of it is in demand, else of the highest bar.
  const whole = most > total / 4 ? total : most * 1.25;
  return [
    label('Demand at the next window ends', `up to ${number(most)} of ${number(total)} blocks`),
    element('div', { class: 'outlook' }, ...points.map((point) => element('div', {
      title: `${number(point.demand_blocks)} blocks in demand, ${number(point.free_blocks)} free`,
    }, element('i', { style: { height: percent(point.demand_blocks, whole) } })))),
    element('div', { class: 'outlook-times' },
      ...points.map((point) => element('span', {}, `+${duration(point.in_ms)}`))),
  ];
}

const kMostRows = 24;

function sequenceRow(s) {
  const prompt = Math.min(s.held_tokens, s.prompt_tokens);
  const parts = [['prompt', prompt], ['written', s.held_tokens - prompt],
    ['granted', Math.max(0, s.granted_tokens - s.held_tokens)]];
  return [
    element('span', {}, `#${s.sequence}`),
    bar(parts, s.prompt_tokens + s.max_tokens, true),
    element('span', {},
      `${number(s.prompt_tokens)} + ${number(s.generated)} of ${number(s.max_tokens)}`),
  ];
}

function runningPart(instance) {
  const running = instance.running;
  const rows = running.slice(0, kMostRows).flatMap(sequenceRow);
  const rest = running.length - kMostRows;
  if (rest > 0) rows.push(element('span', { class: 'none' }, `and ${rest} more`));
  if (!rows.length) rows.push(element('span', { class: 'none' }, 'Nothing runs.'));
  const parts = [
    label('Running set', `${running.length} running, ${instance.waiting_requests} waiting`),
    element('div', { class: 'sequences' }, ...rows),
  ];
  if (running.length) {
    parts.push(legend(['p', 'prompt'], ['w', 'generated'], ['g', 'granted in this window']));
  }
  return parts;
}

function card(instance) {
  const hits = instance.prefix_cache;
  const share = hits.queried_tokens ? (100 * hits.hit_tokens) / hits.queried_tokens : 0;
  const facts = [
    instance.role + (instance.draining ? ', draining' : ''),
    `${Math.round(100 * instance.device.busy)}% busy`,
    `${Math.round(share)}% prefix hits`,
    `${number(instance.generated_tokens)} tokens generated`,
  ];
  return element('div', { class: 'card' },
    element('h2', {}, `Instance ${instance.instance}`, element('small', {}, facts.join(' · '))),
    ...memoryPart(instance), ...windowPart(instance), ...outlookPart(instance),
    ...runningPart(instance), ...devicePart(instance));
}

let lastCount = null;
function showRate(memory) {
  const total = memory.instances.reduce((sum, i) => sum + i.generated_tokens, 0);
  const now = performance.now() - memory.age_ms;
  if (lastCount && now > lastCount.now + 50) {
    const rate = (1000 * (total - lastCount.total)) / (now - lastCount.now);
    lastCount.rate = 0.6 * (lastCount.rate || 0) + 0.4 * Math.max(0, rate);
    const shown = lastCount.rate < 10 ? lastCount.rate.toFixed(1) : number(lastCount.rate);
    $('rate').textContent = shown;
  }
  if (!lastCount || now > lastCount.now + 50) lastCount = { now, total, rate: lastCount?.rate };
}

function setState(text, kind) {
  $('state').textContent = text;
  $('state').className = `pill ${kind}`;
}

async function get(path) {
  const response = await fetch(path, { headers: headers() });
  if (!response.ok) throw new Error((await response.json()).error.message);
  return response.json();
}

function placementRow(decision) {
  const chosen = decision.candidates.find((c) => c.instance === decision.instance);
  const cells = [
    `${number(decision.prompt_tokens)} tokens`, `${number(decision.max_new_tokens)} more`,
    decision.instance ?? '–', decision.outcome, chosen ? duration(chosen.predicted_ttft_ms) : '–',
    duration(decision.age_ms),
  ];
  return element('tr', {}, ...cells.map((cell) => element('td', {}, String(cell))));
}

async function showModel() {
  const { data } = await get('v1/models');
  $('model').textContent = data[0].id;
  $('context').textContent = `${number(data[0].max_model_len)} tokens of context`;
  document.title = `sluice · ${data[0].id}`;
}

// Returns the time until the next look.
async function refresh() {
  try {
    const memory = await get('debug/memory');
    const sum = (of) => memory.instances.reduce((total, instance) => total + of(instance), 0);
    const running = sum((i) => i.running.length);
    $('running').textContent = number(running);
    $('waiting').textContent = number(memory.queued_requests + sum((i) => i.waiting_requests));
    showRate(memory);
    setState(memory.draining ? 'draining' : 'ready', memory.draining ? 'bad' : 'good');
    $('instances').replaceChildren(...memory.instances.map(card));
    const { decisions } = await get('debug/decisions');
    $('placements-card').hidden = decisions.length === 0;
    $('placements').replaceChildren(...decisions.slice(0, 6).map(placementRow));
    if (!$('model').textContent) await showModel();
    return running > 0 ? 250 : 1000;
  } catch (error) {
    setState('not reachable', 'bad');
    const text = error instanceof TypeError ? 'The server does not answer.' : error.message;
    $('instances').replaceChildren(element('div', { class: 'card note-box' }, text));
    return 2000;
  }
}

(async () => {
  await showModel().catch(() => {});  // refresh() says what is wrong
  const question = new URLSearchParams(location.search).get('q');  // /?q=... asks at once
  if (question) ask(question);
  for (;;) {
    const pause = await refresh();
    await new Promise((resolve) => setTimeout(resolve, document.hidden ? 3000 : pause));
  }
})();
