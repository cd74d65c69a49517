// The OpenAI SDK on /v1/responses.
import assert from 'node:assert/strict';
import OpenAI from 'openai';
import {
  apiKey, assertIdle, baseURL, collect, countAnswer, countQuestion, endless, eventually, rejection, run, running,
  storyQuestion, sumQuestion, test,
} from './harness.mjs';

const client = new OpenAI({ baseURL: `${baseURL}/v1`, apiKey, maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const ask = (input, more = {}) => ({ model, temperature: 0, input, ...more });
const { max_tokens: max_output_tokens, ...endlessly } = endless;

/** Types of the items, in order. */
const kinds = (response) => response.output.map((item) => item.type);
const reasoning = (response) => response.output.find((item) => item.type === 'reasoning').content[0].text;

test('a whole response', async () => {
  const response = await client.responses.create(ask(countQuestion));
  assert.equal(response.status, 'completed');
  assert.deepEqual(kinds(response), ['reasoning', 'message']);
  assert.equal(response.output_text, countAnswer);
  assert.ok(reasoning(response).length > 0);
  assert.ok(response.usage.output_tokens_details.reasoning_tokens > 0);
  assert.equal(response.usage.total_tokens, response.usage.input_tokens + response.usage.output_tokens);
});

test('streamed events: numbered, in order, and the parts say the same as the whole', async () => {
  const events = await collect(await client.responses.create(ask(countQuestion, { stream: true })));
  assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, i) => i));
  const order = events.map((event) => event.type).filter((type, i, types) => type !== types[i - 1]);
  assert.deepEqual(order.map((type) => type.replace('response.', '')), [
    'created', 'in_progress',
    'output_item.added', 'content_part.added', 'reasoning_text.delta', 'reasoning_text.done', 'content_part.done',
    'output_item.done',
    'output_item.added', 'content_part.added', 'output_text.delta', 'output_text.done', 'content_part.done',
    'output_item.done',
    'completed']);
  const joined = (type) => events.filter((event) => event.type === type).map((event) => event.delta).join('');
  const { response } = events.at(-1);
  assert.equal(joined('response.output_text.delta'), countAnswer);
  assert.equal(joined('response.reasoning_text.delta'), reasoning(response));
  const done = events.filter((event) => event.type === 'response.output_item.done');
  assert.deepEqual(done.map((event) => event.item), response.output);
  assert.deepEqual(done.map((event) => event.output_index), [0, 1]);
});

test('the stream helper assembles the same response', async () => {
  const stream = client.responses.stream(ask(countQuestion));
  let text = '';
  stream.on('response.output_text.delta', (event) => { text += event.delta; });
  const response = await stream.finalResponse();
  assert.equal(text, countAnswer);
  assert.equal(response.output_text, countAnswer);
});

test('instructions, effort and output sent back as input', async () => {
  const first = await client.responses.create(
    ask('Hello, my name is Emma.', { instructions: 'You are helpful.', reasoning: { effort: 'none' } }));
  assert.deepEqual(kinds(first), ['message']);
  const input = [{ role: 'user', content: 'Hello, my name is Emma.' }, ...first.output,
    { role: 'user', content: 'What is my name?' }];
  const second = await client.responses.create(ask(input, { reasoning: { effort: 'none' } }));
  assert.match(second.output_text, /Emma/);
});

test('a cut response is incomplete, streamed too', async () => {
  const request = ask(countQuestion, { max_output_tokens: 16 });
  const whole = await client.responses.create(request);
  assert.deepEqual([whole.status, whole.incomplete_details.reason], ['incomplete', 'max_output_tokens']);
  const events = await collect(await client.responses.create({ ...request, stream: true }));
  assert.equal(events.at(-1).type, 'response.incomplete');
  assert.equal(events.at(-1).response.output_text ?? '', whole.output_text);
});

test('refusals have the SDK\'s classes', async () => {
  const bad = await rejection(() => client.responses.create(ask('hi', { top_p: 7 })));
  assert.ok(bad instanceof OpenAI.BadRequestError);
  assert.equal(bad.param, 'top_p');
  const previous = await rejection(() => client.responses.create(ask('hi', { previous_response_id: 'resp_1' })));
  assert.ok(previous instanceof OpenAI.BadRequestError);
  const unknown = await rejection(() => client.responses.create({ ...ask('hi'), model: 'gpt-4o' }));
  assert.ok(unknown instanceof OpenAI.NotFoundError);
  const stranger = new OpenAI({ baseURL: `${baseURL}/v1`, apiKey: 'wrong', maxRetries: 0 });
  assert.ok((await rejection(() => stranger.responses.create(ask('hi')))) instanceof OpenAI.AuthenticationError);
});

test('aborts, streamed and whole, leave the server idle', async () => {
  const aborts = new AbortController();
  const request = ask(storyQuestion, { ...endlessly, max_output_tokens });
  let pieces = 0;
  for await (const event of await client.responses.create({ ...request, stream: true }, { signal: aborts.signal })) {
    if (event.type.endsWith('.delta') && ++pieces === 5) aborts.abort();
  }
  assert.ok(pieces >= 5 && pieces < 500);
  await assertIdle();
  const whole = new AbortController();
  const refused = rejection(() => client.responses.create(request, { signal: whole.signal }));
  assert.ok(await eventually(async () => (await running()) === 1, 5000));
  whole.abort();
  assert.ok((await refused) instanceof OpenAI.APIUserAbortError);
  await assertIdle();
});

test('an input of content parts', async () => {
  const response = await client.responses.create(ask([{ role: 'user', content: [{ type: 'input_text', text: sumQuestion }] }]));
  assert.match(response.output_text, /56/);
});

await run('openai responses');
