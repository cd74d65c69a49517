// All three SDKs: replies that must follow a JSON schema, and calls that must be made.
import assert from 'node:assert/strict';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import Anthropic from '@anthropic-ai/sdk';
import { Output, generateText, jsonSchema, streamText, tool } from 'ai';
import Ajv from 'ajv';
import OpenAI from 'openai';
import { zodFunction, zodResponseFormat, zodTextFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import {
  apiKey, baseURL, collect, countQuestion, functions, jsonAnswer, jsonQuestion, rejection, run, storyQuestion, test,
  weatherQuestion,
} from './harness.mjs';

const client = new OpenAI({ baseURL: `${baseURL}/v1`, apiKey, maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const ask = (content, more = {}) => ({ model, temperature: 0, messages: [{ role: 'user', content }], ...more });
const ajv = new Ajv();

const person = {
  type: 'object',
  properties: { name: { type: 'string' }, age: { type: 'integer' } },
  required: ['name', 'age'],
  additionalProperties: false,
};
const format = (schema) => ({ type: 'json_schema', json_schema: { name: 'reply', schema, strict: true } });

test('a schema the model would follow anyway', async () => {
  const reply = await client.chat.completions.create(ask(jsonQuestion, { response_format: format(person) }));
  assert.deepEqual(JSON.parse(reply.choices[0].message.content), jsonAnswer);
  assert.equal(reply.choices[0].finish_reason, 'stop');
  assert.ok(reply.choices[0].message.reasoning_content.length > 0, 'reasoning is free');
});

test('a schema the model would never follow, with and without thinking, whole and streamed', async () => {
  const schema = {
    type: 'object',
    properties: {
      kind: { enum: ['red', 'green'] },
      sizes: { type: 'array', items: { type: 'integer', minimum: 0, maximum: 99 }, minItems: 2, maxItems: 3 },
      note: { type: 'string', maxLength: 12 },
    },
    required: ['kind', 'sizes', 'note'],
    additionalProperties: false,
  };
  const validate = ajv.compile(schema);
  for (const enable_thinking of [true, false]) {
    const request = ask(countQuestion, { response_format: format(schema), chat_template_kwargs: { enable_thinking } });
    const whole = (await client.chat.completions.create(request)).choices[0];
    assert.equal(whole.finish_reason, 'stop');
    assert.ok(validate(JSON.parse(whole.message.content)), whole.message.content);
    const chunks = await collect(await client.chat.completions.create({ ...request, stream: true }));
    const streamed = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join('');
    assert.equal(streamed, whole.message.content);
  }
});

test('any seed follows the schema', async () => {
  const schema = { type: 'object', properties: { word: { type: 'string', maxLength: 20 }, ok: { type: 'boolean' } }, required: ['word', 'ok'] };
  const validate = ajv.compile(schema);
  const replies = await client.chat.completions.create(ask(storyQuestion, {
    response_format: format(schema), temperature: 1.5, seed: 3, n: 4, chat_template_kwargs: { enable_thinking: false },
  }));
  for (const choice of replies.choices) assert.ok(validate(JSON.parse(choice.message.content)), choice.message.content);
});

test('json_object gives an object', async () => {
  const reply = await client.chat.completions.create(ask(jsonQuestion, { response_format: { type: 'json_object' } }));
  assert.deepEqual(JSON.parse(reply.choices[0].message.content), jsonAnswer);
});

const Person = z.object({ name: z.string(), age: z.number().int() });

test('the parse helpers', async () => {
  const request = ask(jsonQuestion, { response_format: zodResponseFormat(Person, 'person') });
  const reply = await client.chat.completions.parse(request);
  assert.deepEqual(reply.choices[0].message.parsed, jsonAnswer);
  const streamed = await client.chat.completions.stream(request).finalChatCompletion();
  assert.deepEqual(streamed.choices[0].message.parsed, jsonAnswer);
  const response = await client.responses.parse({
    model, temperature: 0, input: jsonQuestion, text: { format: zodTextFormat(Person, 'person') },
  });
  assert.deepEqual(response.output_parsed, jsonAnswer);
});

test('a strict function parses its arguments', async () => {
  const weather = zodFunction({ name: 'get_weather', description: functions[0].description, parameters: z.object({ city: z.string() }) });
  const reply = await client.chat.completions.parse(ask(weatherQuestion, { tools: [weather] }));
  assert.deepEqual(reply.choices[0].message.tool_calls[0].function.parsed_arguments, { city: 'London' });
});

test('required and named: a call, though the question asks for none', async () => {
  const tools = functions.map((definition) => ({ type: 'function', function: definition }));
  const required = (await client.chat.completions.create(ask(countQuestion, { tools, tool_choice: 'required' }))).choices[0];
  assert.equal(required.finish_reason, 'tool_calls');
  assert.ok(required.message.tool_calls.length >= 1);
  for (const enable_thinking of [true, false]) {
    const named = (await client.chat.completions.create(ask(weatherQuestion, {
      tools, tool_choice: { type: 'function', function: { name: 'add_numbers' } }, chat_template_kwargs: { enable_thinking },
    }))).choices[0];
    assert.equal(named.finish_reason, 'stop');
    assert.equal(named.message.tool_calls.length, 1);
    assert.equal(named.message.tool_calls[0].function.name, 'add_numbers');
    const { a, b } = JSON.parse(named.message.tool_calls[0].function.arguments);
    assert.ok(Number.isInteger(a) && Number.isInteger(b));
  }
});

test('a keyword that is not supported is refused by name', async () => {
  const schema = { type: 'object', properties: { even: { type: 'integer', multipleOf: 2 } }, required: ['even'] };
  const error = await rejection(() => client.chat.completions.create(ask('hi', { response_format: format(schema) })));
  assert.ok(error instanceof OpenAI.BadRequestError);
  assert.match(error.message, /multipleOf/);
});

// ---- the other SDKs

const anthropic = new Anthropic({ baseURL, apiKey, maxRetries: 0 });
const message = (more) => ({
  model, max_tokens: 1200, temperature: 0,
  tools: functions.map(({ name, description, parameters }) => ({ name, description, input_schema: parameters })), ...more,
});

test('messages: tool_choice any and a named tool, though the question asks for none', async () => {
  const messages = [{ role: 'user', content: countQuestion }];
  const any = await anthropic.messages.create(message({ messages, tool_choice: { type: 'any' } }));
  assert.equal(any.content.at(-1).type, 'tool_use');
  assert.equal(any.stop_reason, 'tool_use');
  const named = await anthropic.messages.create(message({ messages, tool_choice: { type: 'tool', name: 'add_numbers' } }));
  const uses = named.content.filter((block) => block.type === 'tool_use');
  assert.deepEqual(uses.map((use) => use.name), ['add_numbers']);
  assert.ok(Number.isInteger(uses[0].input.a) && Number.isInteger(uses[0].input.b));
  assert.equal(named.stop_reason, 'tool_use');
});

globalThis.AI_SDK_LOG_WARNINGS = false;
const provider = createOpenAICompatible({ name: 'glm53', baseURL: `${baseURL}/v1`, apiKey, supportsStructuredOutputs: true });
const aiCommon = { model: provider(model), temperature: 0, maxRetries: 0 };
const aiTools = Object.fromEntries(functions.map(({ name, description, parameters }) =>
  [name, tool({ description, inputSchema: jsonSchema(parameters) })]));

test('ai sdk: toolChoice required', async () => {
  const result = await generateText({ ...aiCommon, prompt: countQuestion, tools: aiTools, toolChoice: 'required' });
  assert.ok(result.toolCalls.length >= 1);
  assert.ok(result.toolCalls.every((call) => !call.invalid));
});

test('ai sdk: an object by schema, whole and streamed', async () => {
  const output = Output.object({ schema: z.object({ name: z.string(), age: z.number().int() }) });
  const whole = await generateText({ ...aiCommon, prompt: jsonQuestion, output });
  assert.deepEqual(whole.output, jsonAnswer);
  const streamed = streamText({ ...aiCommon, prompt: jsonQuestion, output });
  const partial = await collect(streamed.partialOutputStream);
  assert.deepEqual(partial.at(-1), jsonAnswer);
});

await run('constrained');

