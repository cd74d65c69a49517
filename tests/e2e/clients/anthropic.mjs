// The Anthropic SDK on /v1/messages and /v1/messages/count_tokens.
import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import {
  apiKey, assertIdle, baseURL, collect, countAnswer, countQuestion, endless, eventually, rejection, run, running,
  storyQuestion, sumQuestion, test,
} from './harness.mjs';

const client = new Anthropic({ baseURL, apiKey, maxRetries: 0 });
const { id: model } = (await (await fetch(`${baseURL}/v1/models`, { headers: { 'x-api-key': apiKey } })).json()).data[0];
const ask = (content, more = {}) => ({
  model, max_tokens: 400, temperature: 0, messages: [{ role: 'user', content }], ...more,
});
const thinking = { thinking: { type: 'enabled', budget_tokens: 1024 } };
const kinds = (message) => message.content.map((block) => block.type);

test('a whole message', async () => {
  const message = await client.messages.create(ask(countQuestion));
  assert.deepEqual([message.type, message.role, message.stop_reason], ['message', 'assistant', 'end_turn']);
  assert.deepEqual(kinds(message), ['text']);
  assert.equal(message.content[0].text, countAnswer);
  assert.ok(message.usage.input_tokens > 0 && message.usage.output_tokens > 20);
});

test('thinking blocks, and what they count for', async () => {
  const message = await client.messages.create(ask(countQuestion, { ...thinking, max_tokens: 1200 }));
  assert.deepEqual(kinds(message), ['thinking', 'text']);
  assert.ok(message.content[0].thinking.length > 0 && message.content[0].signature.length > 0);
  const off = await client.messages.create(ask(sumQuestion, { thinking: { type: 'disabled' } }));
  assert.deepEqual(kinds(off), ['text']);
  assert.match(off.content[0].text, /^8 \* 7 = 56/);
});

test('the stream helper assembles the whole message, thinking included', async () => {
  const request = ask(countQuestion, { ...thinking, max_tokens: 1200 });
  const whole = await client.messages.create(request);
  const stream = client.messages.stream(request);
  let text = '';
  let thought = '';
  stream.on('text', (delta) => { text += delta; });
  stream.on('thinking', (delta) => { thought += delta; });
  const message = await stream.finalMessage();
  assert.equal(text, countAnswer);
  assert.equal(thought, whole.content[0].thinking);
  assert.deepEqual(message.content.map(({ text: t, thinking: k }) => t ?? k), whole.content.map(({ text: t, thinking: k }) => t ?? k));
  assert.equal(message.stop_reason, 'end_turn');
  assert.equal(message.usage.output_tokens, whole.usage.output_tokens);
});

test('raw events: one block at a time, deltas of the block\'s own kind', async () => {
  const events = await collect(await client.messages.create(
    ask(countQuestion, { ...thinking, max_tokens: 1200, stream: true })));
  assert.deepEqual([events[0].type, events.at(-2).type, events.at(-1).type], ['message_start', 'message_delta', 'message_stop']);
  const fits = { text: ['text_delta'], thinking: ['thinking_delta', 'signature_delta'], tool_use: ['input_json_delta'] };
  let open = null;
  let next = 0;
  for (const event of events) {
    if (event.type === 'content_block_start') {
      assert.equal(open, null);
      assert.equal(event.index, next++);
      open = event.content_block.type;
    } else if (event.type === 'content_block_delta') {
      assert.equal(event.index, next - 1);
      assert.ok(fits[open].includes(event.delta.type));
    } else if (event.type === 'content_block_stop') {
      assert.equal(event.index, next - 1);
      open = null;
    }
  }
  assert.equal(next, 2);
});

test('count_tokens counts what a message uses', async () => {
  const { max_tokens, temperature, ...rest } = ask(countQuestion, { system: 'You are helpful.' });
  const counted = await client.messages.countTokens(rest);
  const message = await client.messages.create({ ...rest, max_tokens, temperature });
  assert.equal(counted.input_tokens, message.usage.input_tokens + message.usage.cache_read_input_tokens);
});

test('thinking blocks are taken back, and the conversation is remembered', async () => {
  const opening = { role: 'user', content: 'Hello, my name is Emma.' };
  const request = { model, max_tokens: 1200, temperature: 0, system: [{ type: 'text', text: 'You are helpful.' }], ...thinking };
  const first = await client.messages.create({ ...request, messages: [opening] });
  const messages = [opening, { role: 'assistant', content: first.content }, { role: 'user', content: 'What is my name?' }];
  const second = await client.messages.create({ ...request, messages });
  assert.match(second.content.at(-1).text, /Emma/);
});

test('stop sequences and max_tokens', async () => {
  const stopped = await client.messages.create(ask(countQuestion, { stop_sequences: ['\n7\n'] }));
  assert.deepEqual([stopped.stop_reason, stopped.stop_sequence], ['stop_sequence', '\n7\n']);
  assert.equal(stopped.content[0].text, '1\n2\n3\n4\n5\n6');
  const cut = await client.messages.create(ask(countQuestion, { max_tokens: 3 }));
  assert.deepEqual([cut.stop_reason, cut.usage.output_tokens], ['max_tokens', 3]);
});

// ---- refusals, by the SDK's classes

test('400, 401 and 404 have the SDK\'s classes', async () => {
  const bad = await rejection(() => client.messages.create(ask('hi', { temperature: -1 })));
  assert.ok(bad instanceof Anthropic.BadRequestError);
  assert.equal(bad.error.error.type, 'invalid_request_error');
  assert.match(bad.message, /temperature/);
  const long = await rejection(() => client.messages.create(ask('goat '.repeat(9000))));
  assert.ok(long instanceof Anthropic.BadRequestError);
  assert.match(long.message, /prompt is too long: \d+ tokens > 8192 maximum/);
  const stranger = new Anthropic({ baseURL, apiKey: 'wrong', maxRetries: 0 });
  const unauthorized = await rejection(() => stranger.messages.create(ask('hi')));
  assert.ok(unauthorized instanceof Anthropic.AuthenticationError);
  assert.equal(unauthorized.error.error.type, 'authentication_error');
  const unknown = await rejection(() => client.messages.create({ ...ask('hi'), model: 'claude-3' }));
  assert.ok(unknown instanceof Anthropic.NotFoundError);
  assert.equal(unknown.error.error.type, 'not_found_error');
});

test('a full queue is "overloaded", which the SDK retries', async () => {
  const aborts = new AbortController();
  const { signal } = aborts;
  const held = Array.from({ length: 9 }, () => client.messages
    .create({ ...ask(storyQuestion), ...endless, stream: true }, { signal }).catch((error) => error));
  try {
    await Promise.all(held);
    const error = await rejection(() => client.messages.create(ask('hi')));
    assert.ok(error instanceof Anthropic.APIError);
    assert.deepEqual([error.status, error.error.error.type], [529, 'overloaded_error']);
    // The queue empties while the SDK waits the five seconds of Retry-After.
    let tries = 0;
    const counting = (...request) => {
      ++tries;
      return fetch(...request);
    };
    const patient = client.withOptions({ maxRetries: 1, fetch: counting });
    setTimeout(() => aborts.abort(), 200);
    assert.match((await patient.messages.create(ask(sumQuestion))).content.at(-1).text, /56/);
    assert.equal(tries, 2);
  } finally {
    aborts.abort();
  }
  await assertIdle();
});

// ---- abort

test('aborts, streamed and whole, leave the server idle', async () => {
  const stream = client.messages.stream({ ...ask(storyQuestion), ...endless });
  const ended = rejection(() => stream.finalMessage());
  let pieces = 0;
  stream.on('text', () => {
    if (++pieces === 5) stream.abort();
  });
  assert.ok((await ended) instanceof Anthropic.APIUserAbortError);
  await assertIdle();
  const aborts = new AbortController();
  const refused = rejection(() => client.messages.create({ ...ask(storyQuestion), ...endless }, { signal: aborts.signal }));
  assert.ok(await eventually(async () => (await running()) === 1, 5000));
  aborts.abort();
  assert.ok((await refused) instanceof Anthropic.APIUserAbortError);
  await assertIdle();
});

await run('anthropic');
