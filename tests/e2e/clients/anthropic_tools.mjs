// The Anthropic SDK: tool_use on /v1/messages, whole and streamed.
import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import {
  apiKey, baseURL, collect, functions, run, test, toolResult, weatherAnswer, weatherQuestion,
} from './harness.mjs';

const client = new Anthropic({ baseURL, apiKey, maxRetries: 0 });
const { id: model } = (await (await fetch(`${baseURL}/v1/models`, { headers: { 'x-api-key': apiKey } })).json()).data[0];
const tools = functions.map(({ name, description, parameters }) => ({ name, description, input_schema: parameters }));
const question = { role: 'user', content: weatherQuestion };
const ask = (more = {}) => ({ model, max_tokens: 1200, temperature: 0, messages: [question], tools, ...more });
const thinking = { type: 'enabled', budget_tokens: 1024 };

test('a round trip: tool_use, tool_result, answer', async () => {
  for (const more of [{}, { thinking }]) {
    const first = await client.messages.create(ask(more));
    assert.equal(first.stop_reason, 'tool_use');
    assert.deepEqual(first.content.map((block) => block.type), more.thinking ? ['thinking', 'tool_use'] : ['tool_use']);
    const use = first.content.at(-1);
    assert.match(use.id, /^toolu_/);
    assert.deepEqual([use.name, use.input], ['get_weather', { city: 'London' }]);
    const messages = [question, { role: 'assistant', content: first.content },
      { role: 'user', content: [{ type: 'tool_result', tool_use_id: use.id, content: toolResult }] }];
    const second = await client.messages.create(ask({ ...more, messages }));
    assert.equal(second.content.at(-1).text, weatherAnswer);
    assert.equal(second.stop_reason, 'end_turn');
  }
});

test('streamed: the helper assembles the same message', async () => {
  const whole = await client.messages.create(ask({ thinking }));
  const stream = client.messages.stream(ask({ thinking }));
  let json = '';
  stream.on('inputJson', (delta) => { json += delta; });
  const message = await stream.finalMessage();
  const bare = (content) => content.map(({ id, signature, ...rest }) => rest);
  assert.deepEqual(bare(message.content), bare(whole.content));
  assert.deepEqual(JSON.parse(json), { city: 'London' });
  assert.deepEqual([message.stop_reason, message.usage.output_tokens], ['tool_use', whole.usage.output_tokens]);
});

test('streamed: a tool_use block opens empty, fills by input_json_delta, closes', async () => {
  const events = await collect(await client.messages.create(ask({ stream: true })));
  const start = events.findIndex((event) => event.content_block?.type === 'tool_use');
  assert.deepEqual(events[start].content_block.input, {});
  const { index } = events[start];
  const mine = events.filter((event) => event.index === index);
  assert.equal(mine.at(-1).type, 'content_block_stop');
  assert.ok(mine.length >= 3);
  assert.ok(mine.slice(1, -1).every((event) => event.delta.type === 'input_json_delta'));
  assert.equal(events.find((event) => event.type === 'message_delta').delta.stop_reason, 'tool_use');
});

// The loop first asks for a conversation that the server keeps, and goes on without when that is refused by its rules.
test('the SDK\'s own tool loop', async () => {
  const seen = [];
  const runner = client.beta.messages.toolRunner(ask({
    tools: tools.map((definition) => ({ type: 'custom', ...definition, run: (input) => { seen.push(input); return toolResult; } })),
  }));
  const message = await runner;
  assert.equal(message.content.at(-1).text, weatherAnswer);
  assert.deepEqual(seen, [{ city: 'London' }]);
});

test('tool_choice none calls nothing', async () => {
  const none = await client.messages.create(ask({ tool_choice: { type: 'none' } }));
  assert.deepEqual(none.content.map((block) => block.type), ['text']);
});

test('count_tokens counts the tools', async () => {
  const { max_tokens, temperature, ...rest } = ask();
  const counted = await client.messages.countTokens(rest);
  const message = await client.messages.create(ask());
  assert.equal(counted.input_tokens, message.usage.input_tokens + message.usage.cache_read_input_tokens);
});

await run('anthropic tools');
