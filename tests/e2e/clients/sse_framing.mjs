// The bytes of every stream: framing by eventsource-parser, fed one byte at a time, and the shape of each event by JSON
// schema. The schemas refuse fields they do not know, so a field that appears by mistake is seen.
import assert from 'node:assert/strict';
import Ajv from 'ajv';
import { createParser } from 'eventsource-parser';
import { apiKey, baseURL, countQuestion, functions, run, test, weatherQuestion } from './harness.mjs';

const ajv = new Ajv({ allErrors: true, strict: true, allowUnionTypes: true });
const object = (properties, optional = []) => ({
  type: 'object',
  properties,
  required: Object.keys(properties).filter((name) => !optional.includes(name)),
  additionalProperties: false,
});
const list = (items) => ({ type: 'array', items });
const string = { type: 'string' };
const text = { type: 'string', minLength: 1 };
const nullable = { type: ['string', 'null'] };
const count = { type: 'integer', minimum: 0 };
const id = (prefix) => ({ type: 'string', pattern: `^${prefix}[0-9a-f]{32}$` });

// ---- chat and text completions

const usage = object({
  prompt_tokens: count,
  total_tokens: count,
  completion_tokens: count,
  prompt_tokens_details: object({ cached_tokens: count }),
  completion_tokens_details: object({ reasoning_tokens: count }),
});
const token = object({ token: string, logprob: { type: 'number', maximum: 0 }, bytes: list(count) });
const logprobs = object({
  content: list(object({ ...token.properties, top_logprobs: list(token) })),
  refusal: { type: 'null' },
});
const stopReason = { type: ['string', 'integer', 'null'] };
const call = { id: { type: 'string', pattern: '^call_[0-9a-f]{24}$' }, type: { const: 'function' }, function: object({ name: text, arguments: text }) };
const delta = {
  anyOf: [
    object({ role: { const: 'assistant' }, content: { const: '' } }),
    object({ content: text }),
    object({ reasoning: text, reasoning_content: text }),
    object({ tool_calls: list(object({ index: count, ...call })) }),
    object({}),
  ],
};
const chunk = (prefix, kind, choice) => object({
  id: id(prefix), object: { const: kind }, created: count, model: text, choices: list(choice), usage: { anyOf: [usage, { type: 'null' }] },
});
const chatChunk = chunk('chatcmpl-', 'chat.completion.chunk', object({
  index: count, delta, logprobs: { anyOf: [logprobs, { type: 'null' }] },
  finish_reason: { enum: ['stop', 'length', 'tool_calls', null] }, stop_reason: stopReason,
}, ['stop_reason']));
const chatWhole = object({
  id: id('chatcmpl-'), object: { const: 'chat.completion' }, created: count, model: text,
  choices: list(object({
    index: count,
    message: object({
      role: { const: 'assistant' }, content: nullable, refusal: { type: 'null' }, reasoning: text, reasoning_content: text,
      tool_calls: { ...list(object(call)), minItems: 1 },
    }, ['reasoning', 'reasoning_content', 'tool_calls']),
    logprobs: { anyOf: [logprobs, { type: 'null' }] },
    finish_reason: { enum: ['stop', 'length', 'tool_calls'] }, stop_reason: stopReason,
  })),
  system_fingerprint: nullable, usage,
});
const error = object({ error: object({ message: text, type: text, param: nullable, code: { type: ['string', 'integer', 'null'] } }) });

// ---- Messages

const messageUsage = object({
  input_tokens: count, cache_creation_input_tokens: count, cache_read_input_tokens: count, output_tokens: count,
});
const block = {
  anyOf: [
    object({ type: { const: 'thinking' }, thinking: string, signature: string }),
    object({ type: { const: 'text' }, text: string }),
    object({ type: { const: 'tool_use' }, id: text, name: text, input: { type: 'object' } }),
  ],
};
const message = object({
  id: id('msg_'), type: { const: 'message' }, role: { const: 'assistant' }, model: text, content: list(block),
  stop_reason: { enum: ['end_turn', 'max_tokens', 'stop_sequence', 'tool_use', null] }, stop_sequence: nullable, usage: messageUsage,
});
const messageEvents = {
  message_start: object({ type: string, message }),
  ping: object({ type: string }),
  content_block_start: object({ type: string, index: count, content_block: block }),
  content_block_delta: object({
    type: string, index: count, delta: {
      anyOf: [
        object({ type: { const: 'thinking_delta' }, thinking: text }),
        object({ type: { const: 'signature_delta' }, signature: text }),
        object({ type: { const: 'text_delta' }, text }),
        object({ type: { const: 'input_json_delta' }, partial_json: string }),
      ],
    },
  }),
  content_block_stop: object({ type: string, index: count }),
  message_delta: object({
    type: string, delta: object({ stop_reason: text, stop_sequence: nullable }), usage: messageUsage,
  }),
  message_stop: object({ type: string }),
};

// ---- reading

const headers = { 'Content-Type': 'application/json', Authorization: `Bearer ${apiKey}`, 'x-api-key': apiKey };
const post = (path, body) => fetch(`${baseURL}${path}`, { method: 'POST', headers, body: JSON.stringify(body) });

/** Events of a stream's body, from a parser that sees one byte at a time. */
async function streamed(path, body) {
  const response = await post(path, { ...body, stream: true });
  assert.equal(response.status, 200);
  assert.equal(response.headers.get('content-type'), 'text/event-stream; charset=utf-8');
  assert.equal(response.headers.get('cache-control'), 'no-cache');
  assert.equal(response.headers.get('x-accel-buffering'), 'no');
  const bytes = Buffer.from(await response.arrayBuffer());
  assert.ok(bytes.toString('latin1').endsWith('\n\n'), 'the last event is complete');
  assert.ok(!bytes.includes('\r'));
  const events = [];
  const parser = createParser({
    onEvent: (event) => events.push(event),
    onError: (problem) => assert.fail(problem),
    onRetry: () => assert.fail('no retry field is expected'),
  });
  const decoder = new TextDecoder('utf-8', { fatal: true });
  for (const byte of bytes) parser.feed(decoder.decode(Uint8Array.of(byte), { stream: true }));
  parser.feed(decoder.decode());
  const blocks = bytes.toString().split('\n\n').filter((part) => part !== '' && !part.startsWith(':'));
  assert.equal(events.length, blocks.length, 'one event a block');
  return events;
}

function check(validate, value) {
  assert.ok(validate(value), `${ajv.errorsText(validate.errors)} in ${JSON.stringify(value).slice(0, 600)}`);
}

const tools = functions.map((definition) => ({ type: 'function', function: definition }));
const toolAsk = { max_tokens: 400, temperature: 0, messages: [{ role: 'user', content: weatherQuestion }] };
const ask = { max_tokens: 400, temperature: 0, messages: [{ role: 'user', content: countQuestion }] };

test('chat chunks', async () => {
  const validate = ajv.compile({ ...chatChunk, required: chatChunk.required.filter((name) => name !== 'usage') });
  for (const more of [{}, { stream_options: { include_usage: true } }, { logprobs: true, top_logprobs: 2, n: 2, temperature: 1, seed: 1 }]) {
    const events = await streamed('/v1/chat/completions', { ...ask, ...more });
    assert.ok(events.every((event) => event.event === undefined), 'chunks have no event name');
    assert.equal(events.pop().data, '[DONE]');
    const chunks = events.map((event) => JSON.parse(event.data));
    for (const value of chunks) check(validate, value);
    assert.equal(new Set(chunks.map(({ id: a, created, model }) => `${a} ${created} ${model}`)).size, 1);
    const choices = chunks.flatMap((value) => value.choices);
    for (const index of new Set(choices.map((choice) => choice.index))) {
      const own = choices.filter((choice) => choice.index === index);
      assert.deepEqual(own[0].delta, { role: 'assistant', content: '' });
      assert.ok(own.slice(1).every((choice) => choice.delta.role === undefined));
      assert.ok(own.slice(0, -1).every((choice) => choice.finish_reason === null) && own.at(-1).finish_reason !== null);
    }
    const asked = more.stream_options !== undefined;
    assert.equal(chunks.filter((value) => value.choices.length === 0).length, asked ? 1 : 0);
    assert.ok(chunks.every((value) => ('usage' in value) === asked));
    if (asked) assert.ok(chunks.at(-1).choices.length === 0 && chunks.slice(0, -1).every((value) => value.usage === null));
  }
});

test('a whole chat reply', async () => {
  const validate = ajv.compile(chatWhole);
  for (const more of [{}, { logprobs: true, top_logprobs: 2 }, { reasoning_effort: 'none' }]) {
    check(validate, await (await post('/v1/chat/completions', { ...ask, ...more })).json());
  }
});

test('chunks of a tool call, and its whole reply', async () => {
  const validate = ajv.compile({ ...chatChunk, required: chatChunk.required.filter((name) => name !== 'usage') });
  const events = await streamed('/v1/chat/completions', { ...toolAsk, tools });
  assert.equal(events.pop().data, '[DONE]');
  const chunks = events.map((event) => JSON.parse(event.data));
  for (const value of chunks) check(validate, value);
  assert.ok(chunks.some((value) => value.choices[0].delta.tool_calls));
  assert.equal(chunks.at(-1).choices[0].finish_reason, 'tool_calls');
  const whole = await (await post('/v1/chat/completions', { ...toolAsk, tools })).json();
  check(ajv.compile(chatWhole), whole);
  assert.ok(whole.choices[0].message.tool_calls);
});

test('text completion chunks', async () => {
  const validate = ajv.compile(chunk('cmpl-', 'text_completion', object({
    index: count, text: string, logprobs: { type: 'null' }, finish_reason: { enum: ['stop', 'length', null] }, stop_reason: stopReason,
  }, ['stop_reason'])));
  const events = await streamed('/v1/completions', {
    prompt: 'Once upon a time,', max_tokens: 8, temperature: 0, stream_options: { include_usage: true },
  });
  assert.equal(events.pop().data, '[DONE]');
  for (const event of events) check(validate, JSON.parse(event.data));
});

test('named events of the Messages API', async () => {
  const validators = Object.fromEntries(Object.entries(messageEvents).map(([name, schema]) => [name, ajv.compile(schema)]));
  const offered = functions.map(({ name, description, parameters }) => ({ name, description, input_schema: parameters }));
  for (const request of [ask, { ...toolAsk, tools: offered }]) {
    const events = await streamed('/v1/messages', { ...request, thinking: { type: 'enabled', budget_tokens: 1024 }, max_tokens: 1200 });
    for (const event of events) {
      const value = JSON.parse(event.data);
      assert.equal(event.event, value.type);
      assert.ok(validators[value.type], `no such event: ${value.type}`);
      check(validators[value.type], value);
    }
  }
});

test('named events of the Responses API', async () => {
  const validate = ajv.compile({
    type: 'object',
    properties: { type: { type: 'string', pattern: '^response\\.' }, sequence_number: count },
    required: ['type', 'sequence_number'],
  });
  const { max_tokens: max_output_tokens, messages: input, temperature } = ask;
  const events = await streamed('/v1/responses', { max_output_tokens, input, temperature });
  events.forEach((event, i) => {
    const value = JSON.parse(event.data);
    check(validate, value);
    assert.deepEqual([event.event, value.sequence_number], [value.type, i]);
  });
  assert.equal(events.at(-1).event, 'response.completed');
});

test('characters of several bytes arrive whole', async () => {
  const prompt = 'naïve café 😀 日本語';
  const events = await streamed('/v1/completions', { prompt, echo: true, max_tokens: 4, temperature: 1.5, seed: 3 });
  const spelled = events.slice(0, -1).map((event) => JSON.parse(event.data).choices[0]?.text ?? '').join('');
  assert.ok(spelled.startsWith(prompt));
});

test('error bodies', async () => {
  const validate = ajv.compile(error);
  for (const [status, path, body] of [
    [400, '/v1/chat/completions', { ...ask, top_p: 7, stream: true }],
    [400, '/v1/completions', {}],
    [400, '/v1/responses', {}],
    [404, '/v1/chat/completions', { ...ask, model: 'gpt-4o' }],
    [404, '/v1/embeddings', { input: 'hi' }],
    [405, '/v1/models', {}],
  ]) {
    const response = await post(path, body);
    assert.equal(response.status, status);
    assert.equal(response.headers.get('content-type'), 'application/json');
    check(validate, await response.json());
  }
  const refused = await post('/v1/messages', {});
  check(ajv.compile(object({ type: { const: 'error' }, error: object({ type: text, message: text }) })), await refused.json());
});

await run('sse framing');
