// The OpenAI SDK: tool calls on /v1/chat/completions and /v1/responses, whole and streamed.
import assert from 'node:assert/strict';
import OpenAI from 'openai';
import {
  apiKey, baseURL, collect, functions, rejection, run, test, toolResult, weatherAnswer, weatherQuestion,
} from './harness.mjs';

const client = new OpenAI({ baseURL: `${baseURL}/v1`, apiKey, maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const tools = functions.map((definition) => ({ type: 'function', function: definition }));
const question = { role: 'user', content: weatherQuestion };
const ask = (more = {}) => ({ model, temperature: 0, messages: [question], tools, ...more });

// ---- chat completions

/** What every call of the weather question is, whichever way it came. */
function assertWeatherCall(call) {
  assert.equal(call.type, 'function');
  assert.match(call.id, /^call_[0-9a-f]{24}$/);
  assert.equal(call.function.name, 'get_weather');
  assert.deepEqual(JSON.parse(call.function.arguments), { city: 'London' });
}

test('a round trip: call, result, answer', async () => {
  const first = await client.chat.completions.create(ask());
  const [choice] = first.choices;
  assert.equal(choice.finish_reason, 'tool_calls');
  assert.equal(choice.message.content, null);
  assert.equal(choice.message.reasoning_content, 'I should call get_weather.');
  assert.equal(choice.message.tool_calls.length, 1);
  const [call] = choice.message.tool_calls;
  assertWeatherCall(call);
  const result = { role: 'tool', tool_call_id: call.id, content: toolResult };
  const second = await client.chat.completions.create(ask({ messages: [question, choice.message, result] }));
  assert.equal(second.choices[0].message.content, weatherAnswer);
  assert.equal(second.choices[0].finish_reason, 'stop');
  assert.equal(second.choices[0].message.tool_calls, undefined);
});

test('the same, streamed', async () => {
  const whole = (await client.chat.completions.create(ask())).choices[0].message;
  const chunks = await collect(await client.chat.completions.create(ask({ stream: true })));
  const deltas = chunks.flatMap((chunk) => chunk.choices).map((choice) => choice.delta);
  const pieces = deltas.flatMap((delta) => delta.tool_calls ?? []);
  assert.ok(pieces.every((piece) => piece.index === 0));
  const { id, type } = pieces[0];
  const name = pieces.map((piece) => piece.function.name ?? '').join('');
  const args = pieces.map((piece) => piece.function.arguments ?? '').join('');
  assertWeatherCall({ id, type, function: { name, arguments: args } });
  assert.equal(args, whole.tool_calls[0].function.arguments);
  assert.equal(deltas.map((delta) => delta.content ?? '').join(''), '');
  assert.equal(deltas.map((delta) => delta.reasoning_content ?? '').join(''), whole.reasoning_content);
  assert.equal(chunks.at(-1).choices[0].finish_reason, 'tool_calls');
  const call = { id, type, function: { name, arguments: args } };
  const answer = await collect(await client.chat.completions.create(ask({
    stream: true,
    messages: [question, { role: 'assistant', tool_calls: [call] }, { role: 'tool', tool_call_id: id, content: toolResult }],
  })));
  assert.equal(answer.map((chunk) => chunk.choices[0]?.delta.content ?? '').join(''), weatherAnswer);
});

test('the stream helper assembles the call', async () => {
  const reply = await client.chat.completions.stream(ask()).finalChatCompletion();
  assert.equal(reply.choices[0].message.tool_calls.length, 1);
  assertWeatherCall(reply.choices[0].message.tool_calls[0]);
});

test('the SDK\'s own tool loop, whole and streamed', async () => {
  for (const stream of [false, true]) {
    const seen = [];
    const runner = client.chat.completions.runTools(ask({
      stream,
      tools: [
        { type: 'function', function: { ...functions[0], parse: JSON.parse, function: (args) => { seen.push(args); return toolResult; } } },
        { type: 'function', function: { ...functions[1], parse: JSON.parse, function: ({ a, b }) => String(a + b) } },
      ],
    }));
    assert.equal(await runner.finalContent(), weatherAnswer);
    assert.deepEqual(seen, [{ city: 'London' }]);
  }
});

test('tool_choice none: the text of a call stays text', async () => {
  const reply = await client.chat.completions.create(ask({ tool_choice: 'none' }));
  assert.equal(reply.choices[0].message.tool_calls, undefined);
  assert.equal(reply.choices[0].finish_reason, 'stop');
  assert.match(reply.choices[0].message.content, /^<tool_call>get_weather/);
});

test('a tool that is not offered cannot be chosen', async () => {
  const choice = { type: 'function', function: { name: 'other' } };
  const error = await rejection(() => client.chat.completions.create(ask({ tool_choice: choice })));
  assert.ok(error instanceof OpenAI.BadRequestError);
  assert.match(error.param, /^tool_choice/);
});

// ---- responses

const flat = functions.map((definition) => ({ type: 'function', strict: false, ...definition }));
const respond = (more = {}) => ({ model, temperature: 0, input: [question], tools: flat, ...more });

test('responses: a round trip', async () => {
  const first = await client.responses.create(respond());
  assert.deepEqual(first.output.map((item) => item.type), ['reasoning', 'function_call']);
  const call = first.output[1];
  assert.deepEqual([call.name, JSON.parse(call.arguments), call.status], ['get_weather', { city: 'London' }, 'completed']);
  assert.ok(call.call_id && call.id && call.call_id !== call.id);
  const input = [question, ...first.output, { type: 'function_call_output', call_id: call.call_id, output: toolResult }];
  const second = await client.responses.create(respond({ input }));
  assert.equal(second.output_text, weatherAnswer);
});

test('responses: streamed events of a call', async () => {
  const events = await collect(await client.responses.create(respond({ stream: true })));
  assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, i) => i));
  const { response } = events.at(-1);
  const call = response.output[1];
  const mine = events.filter((event) => event.output_index === 1);
  const order = mine.map((event) => event.type).filter((type, i, types) => type !== types[i - 1]);
  assert.deepEqual(order.map((type) => type.replace('response.', '')),
    ['output_item.added', 'function_call_arguments.delta', 'function_call_arguments.done', 'output_item.done']);
  const joined = mine.filter((event) => event.type.endsWith('.delta')).map((event) => event.delta).join('');
  assert.equal(joined, call.arguments);
  assert.equal(mine.at(-2).arguments, call.arguments);
  assert.deepEqual(mine.at(-1).item, call);
  assert.deepEqual([mine[0].item.name, mine[0].item.call_id, mine[0].item.arguments], ['get_weather', call.call_id, '']);
  assert.ok(mine.filter((event) => event.item_id).every((event) => event.item_id === call.id));
});

test('responses: the stream helper assembles the call', async () => {
  const response = await client.responses.stream(respond()).finalResponse();
  assert.deepEqual(JSON.parse(response.output.at(-1).arguments), { city: 'London' });
});

await run('openai tools');
