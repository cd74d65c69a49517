// The AI SDK: tools through its provider for OpenAI-compatible servers.
import assert from 'node:assert/strict';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, jsonSchema, stepCountIs, streamText, tool } from 'ai';
import {
  apiKey, baseURL, collect, functions, run, test, toolResult, weatherAnswer, weatherQuestion,
} from './harness.mjs';

globalThis.AI_SDK_LOG_WARNINGS = false;
const provider = createOpenAICompatible({
  name: 'glm53', baseURL: `${baseURL}/v1`, apiKey, includeUsage: true,
});
const common = { model: provider('GLM-5.3-Flash-EXL3'), temperature: 0, maxRetries: 0 };

const tools = (seen) => Object.fromEntries(functions.map(({ name, description, parameters }) => [name, tool({
  description,
  inputSchema: jsonSchema(parameters),
  execute: (input) => {
    seen.push([name, input]);
    return JSON.parse(toolResult);
  },
})]));

test('generateText runs the tool and answers', async () => {
  const seen = [];
  const result = await generateText({ ...common, prompt: weatherQuestion, tools: tools(seen), stopWhen: stepCountIs(3) });
  assert.deepEqual(seen, [['get_weather', { city: 'London' }]]);
  assert.deepEqual(result.steps.map((step) => step.finishReason), ['tool-calls', 'stop']);
  assert.equal(result.text, weatherAnswer);
});

test('streamText: the parts of a call, then the answer', async () => {
  const seen = [];
  const result = streamText({ ...common, prompt: weatherQuestion, tools: tools(seen), stopWhen: stepCountIs(3) });
  const parts = await collect(result.fullStream);
  const order = parts.map((part) => part.type).filter((type, i, types) => type !== types[i - 1]);
  assert.deepEqual(order, ['start', 'start-step', 'reasoning-start', 'reasoning-delta', 'reasoning-end', 'tool-input-start',
    'tool-input-delta', 'tool-input-end', 'tool-call', 'tool-result', 'finish-step', 'start-step', 'reasoning-start',
    'reasoning-delta', 'reasoning-end', 'text-start', 'text-delta', 'text-end', 'finish-step', 'finish']);
  assert.deepEqual(parts.find((part) => part.type === 'tool-call').input, { city: 'London' });
  assert.deepEqual(seen, [['get_weather', { city: 'London' }]]);
  assert.equal(await result.text, weatherAnswer);
});

await run('ai sdk tools');
