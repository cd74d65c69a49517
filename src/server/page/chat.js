// The chat page. One conversation, held in this page alone; a reload forgets it.
import { ApiFailure, chatChunks, servedModel } from './stream.js';
import { TextView } from './text_view.js';

const kKey = 'glm53-serve api key';
const kPauseMs = 50; // Stop and the screen get their turn at least this often, however fast a reply comes
const $ = (id) => document.getElementById(id);

/** @type {object[]} what the next request sends */
let messages = [];
let model = null;
/** Of the reply that runs. */
let running = null;

function element(tag, className = '', text = '') {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

function button(text, action) {
  const made = element('button', '', text);
  made.type = 'button';
  made.addEventListener('click', action);
  return made;
}

// ---- the log

const atBottom = () => $('log').scrollHeight - $('log').scrollTop - $('log').clientHeight < 40;

/** Changes the log and keeps its end in view for who reads there. */
function showing(change) {
  const follow = atBottom();
  change();
  if (follow) $('log').scrollTop = $('log').scrollHeight;
}

function addMessage(className, label, ...content) {
  const article = element('article', `message ${className}`);
  article.setAttribute('aria-label', label);
  $('hint').hidden = true;
  article.append(...content);
  $('log').append(article);
  $('log').scrollTop = $('log').scrollHeight;
  return article;
}

function addError(article, text, retry) {
  const note = element('div', 'error', text);
  note.setAttribute('role', 'alert');
  if (retry) note.append(button('Try again', retry));
  showing(() => article.append(note));
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

// ---- settings

/** The request's fields beside `messages`. Throws what is wrong with them. */
function requestFields() {
  const fields = { model: model.id, chat_template_kwargs: { enable_thinking: $('thinking').checked } };
  if ($('thinking').checked && $('effort').value) fields.reasoning_effort = $('effort').value;
  if ($('temperature').value) fields.temperature = Number($('temperature').value);
  if ($('max-tokens').value) fields.max_tokens = Number($('max-tokens').value);
  if ($('tools').value.trim()) {
    try {
      fields.tools = JSON.parse($('tools').value);
    } catch (error) {
      throw new Error(`The tools are not JSON: ${error.message}`);
    }
  }
  return fields;
}

function requestMessages() {
  const system = $('system').value.trim();
  return system ? [{ role: 'system', content: system }, ...messages] : messages;
}

// ---- a reply

/** One assistant turn: collects its deltas and shows them at most once a frame. */
class Reply {
  constructor() {
    this.facts = element('div', 'facts', 'Waiting…');
    this.article = addMessage('assistant', 'Reply', this.facts);
    this.message = { role: 'assistant', content: '' };
    this.pending = { reasoning: '', content: '' };
    this.calls = [];
    this.started = performance.now();
    this.firstToken = null;
    this.lastToken = null;
    this.usage = null;
    this.finish = null;
    this.frame = 0;
    this.timer = 0;
  }

  take(chunk) {
    this.usage = chunk.usage ?? this.usage;
    const [choice] = chunk.choices;
    if (!choice) return;
    const { delta } = choice;
    const reasoning = delta.reasoning_content ?? delta.reasoning ?? '';
    if (reasoning || delta.content || delta.tool_calls) {
      this.lastToken = performance.now();
      if (this.firstToken === null) {
        this.firstToken = this.lastToken;
        this.tokensThen = this.usage?.completion_tokens ?? 1;
      }
    }
    this.pending.reasoning += reasoning;
    this.pending.content += delta.content ?? '';
    for (const piece of delta.tool_calls ?? []) this.#takeCall(piece);
    this.finish = choice.finish_reason ?? this.finish;
    if (this.timer) return;
    this.frame = requestAnimationFrame(() => this.show());
    // A hidden page gets no frames, and a busy machine draws few.
    this.timer = setTimeout(() => this.show(), 250);
  }

  #takeCall(piece) {
    this.calls[piece.index] ??= { id: '', type: 'function', function: { name: '', arguments: '' } };
    const call = this.calls[piece.index];
    call.id ||= piece.id ?? '';
    call.function.name += piece.function?.name ?? '';
    call.function.arguments += piece.function?.arguments ?? '';
  }

  show() {
    cancelAnimationFrame(this.frame);
    clearTimeout(this.timer);
    this.timer = 0;
    const { reasoning, content } = this.pending;
    this.pending = { reasoning: '', content: '' };
    showing(() => {
      if (reasoning) this.#showReasoning(reasoning);
      if (content) {
        this.message.content += content;
        this.#endReasoning();
        if (!this.text) {
          const body = element('div', 'content');
          this.facts.before(body);
          this.text = new TextView(body);
        }
        this.text.append(content);
      }
      if (this.firstToken !== null) this.facts.textContent = this.#factsText();
    });
  }

  #showReasoning(text) {
    if (!this.reasoning) {
      this.reasoning = element('details', 'reasoning');
      this.reasoning.open = true;
      this.reasoning.append(element('summary', '', 'Reasoning…'), element('div'));
      this.facts.before(this.reasoning);
    }
    this.message.reasoning_content = (this.message.reasoning_content ?? '') + text;
    this.reasoning.lastChild.append(text);
  }

  #endReasoning() {
    if (!this.reasoning || this.reasoningEnded) return;
    this.reasoningEnded = true;
    this.reasoning.open = false;
    this.reasoning.firstChild.textContent = 'Reasoning';
  }

  #factsText() {
    const parts = [];
    if (this.usage) {
      const tokens = this.usage.completion_tokens;
      const seconds = (this.lastToken - this.firstToken) / 1000;
      parts.push(`${tokens} token${tokens === 1 ? '' : 's'}`);
      const speed = (tokens - this.tokensThen) / seconds;
      if (Number.isFinite(speed) && speed > 0) parts.push(`${speed.toFixed(speed < 100 ? 1 : 0)} tokens/s`);
    }
    parts.push(`first token after ${((this.firstToken - this.started) / 1000).toFixed(2)} s`);
    if (this.finish === 'length') parts.push('cut at the token limit');
    if (this.stopped) parts.push('stopped');
    return parts.join(' · ');
  }

  /** No more comes. True: what there is of the reply belongs to the conversation. */
  end() {
    this.show();
    this.text?.end();
    this.#endReasoning();
    if (this.firstToken === null) this.facts.textContent = this.stopped ? 'stopped' : '';
    this.calls = this.calls.filter(Boolean);
    if (this.calls.length > 0) {
      this.message.tool_calls = this.calls;
      if (!this.message.content) this.message.content = null;
      showing(() => this.#showCalls());
    }
    return this.firstToken !== null;
  }

  #showCalls() {
    const results = this.calls.map((call) => {
      const block = element('details', 'call');
      block.open = true;
      const label = element('label', '', 'Result');
      const result = element('textarea');
      result.rows = 2;
      label.append(result);
      block.append(element('summary', '', `Tool call: ${call.function.name}`),
        element('pre', '', pretty(call.function.arguments)), label);
      this.facts.before(block);
      return result;
    });
    const send = button(results.length > 1 ? 'Send results' : 'Send result', () => {
      if (running) return;
      send.remove();
      results.forEach((result, i) => {
        result.readOnly = true;
        messages.push({ role: 'tool', tool_call_id: this.calls[i].id, content: result.value });
      });
      answer();
    });
    this.facts.before(send);
    this.sendResults = send;
  }
}

/** Results can be sent only while their calls end the conversation. */
let openCalls = null;

async function answer() {
  if (running) return;
  const conversation = messages;
  openCalls?.remove();
  openCalls = null;
  const reply = new Reply();
  running = new AbortController();
  $('send').hidden = true;
  $('stop').hidden = false;
  $('log').setAttribute('aria-busy', 'true');
  let failure = null;
  try {
    model ??= await servedModel(key());
    let paused = performance.now();
    for await (const chunk of chatChunks({ ...requestFields(), messages: requestMessages() }, key(), running.signal)) {
      reply.take(chunk);
      if (performance.now() - paused < kPauseMs) continue;
      await new Promise((resume) => { setTimeout(resume); });
      running.signal.throwIfAborted();
      paused = performance.now();
    }
  } catch (error) {
    if (error.name === 'AbortError') reply.stopped = true;
    else failure = error;
  }
  running = null;
  $('send').hidden = false;
  $('stop').hidden = true;
  $('log').setAttribute('aria-busy', 'false');
  if (reply.end() && !failure) {
    conversation.push(reply.message);
    if (conversation === messages) openCalls = reply.sendResults ?? null;
  } else if (failure) {
    reply.facts.remove();
    addError(reply.article, failure.message, () => {
      if (running) return;
      reply.article.remove();
      answer();
    });
    if (failure.status === 401) askForKey(failure.message);
  }
}

// ---- the key

const key = () => sessionStorage.getItem(kKey) ?? '';

function askForKey(note) {
  $('key-form').hidden = false;
  $('key-note').textContent = note;
  $('key').focus();
}

async function connect() {
  try {
    model = await servedModel(key());
  } catch (error) {
    if (error instanceof ApiFailure && error.status === 401) {
      askForKey(key() ? error.message : '');
    } else {
      addError(addMessage('assistant', 'Error'), `The server does not answer: ${error.message}`);
    }
    return false;
  }
  $('model').textContent = model.id;
  document.title = model.id;
  $('context').textContent = `${model.context_length.toLocaleString()} tokens of context`;
  $('key-form').hidden = true;
  return true;
}

$('key-form').addEventListener('submit', async (event) => {
  event.preventDefault();
  sessionStorage.setItem(kKey, $('key').value);
  if (await connect()) $('question').focus();
});

// ---- the composer

function fitQuestion() {
  $('question').style.height = 'auto';
  $('question').style.height = `${$('question').scrollHeight + 2}px`;
}

$('composer').addEventListener('submit', (event) => {
  event.preventDefault();
  const content = $('question').value.trim();
  if (!content || running) return;
  $('question').value = '';
  fitQuestion();
  messages.push({ role: 'user', content });
  addMessage('user', 'You', content);
  answer();
});

$('question').addEventListener('input', fitQuestion);
$('question').addEventListener('keydown', (event) => {
  // On a touch screen Enter is the only way to a new line.
  const sends = event.key === 'Enter' && !event.shiftKey && !event.isComposing && !matchMedia('(pointer: coarse)').matches;
  if (!sends) return;
  event.preventDefault();
  $('composer').requestSubmit();
});

const stop = () => running?.abort();
$('stop').addEventListener('click', stop);
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape') stop();
});

$('new-chat').addEventListener('click', () => {
  stop();
  messages = [];
  openCalls = null;
  $('log').replaceChildren($('hint'));
  $('hint').hidden = false;
  $('question').focus();
});

$('show-settings').addEventListener('click', () => {
  $('settings').hidden = !$('settings').hidden;
  $('show-settings').setAttribute('aria-expanded', String(!$('settings').hidden));
});
$('settings').addEventListener('submit', (event) => event.preventDefault());
$('thinking').addEventListener('change', () => { $('effort').disabled = !$('thinking').checked; });

connect();
