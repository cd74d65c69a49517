// The AI SDK with its provider for OpenAI-compatible servers: a second client of /v1/chat/completions, strict about the
// shapes of chunks, reasoning fields and tool deltas.
import assert from 'node:assert/strict';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { APICallError, generateText, streamText } from 'ai';
import {
  apiKey, assertIdle, baseURL, collect, countAnswer, countQuestion, rejection, run, storyQuestion, sumQuestion, test,
} from './harness.mjs';

globalThis.AI_SDK_LOG_WARNINGS = false;
const provider = createOpenAICompatible({
  name: 'glm53', baseURL: `${baseURL}/v1`, apiKey, includeUsage: true, supportsStructuredOutputs: true,
});
const model = provider('GLM-5.3-Flash-EXL3');
const common = { model, temperature: 0, maxRetries: 0 };

test('generateText: text, reasoning and usage', async () => {
  const result = await generateText({ ...common, prompt: countQuestion });
  assert.equal(result.text, countAnswer);
  assert.ok(result.reasoningText.length > 0);
  assert.equal(result.finishReason, 'stop');
  assert.equal(result.usage.totalTokens, result.usage.inputTokens + result.usage.outputTokens);
  assert.ok(result.usage.outputTokenDetails.reasoningTokens > 0);
});

test('streamText: reasoning parts first, then text, and no error part', async () => {
  const result = streamText({ ...common, prompt: countQuestion });
  const parts = await collect(result.fullStream);
  const order = parts.map((part) => part.type).filter((type, i, types) => type !== types[i - 1]);
  assert.deepEqual(order, ['start', 'start-step', 'reasoning-start', 'reasoning-delta', 'reasoning-end', 'text-start',
    'text-delta', 'text-end', 'finish-step', 'finish']);
  assert.equal(await result.text, countAnswer);
  const whole = await generateText({ ...common, prompt: countQuestion });
  assert.equal(await result.reasoningText, whole.reasoningText);
  assert.equal((await result.totalUsage).outputTokens, whole.usage.outputTokens);
});

test('reasoning of earlier turns is sent back', async () => {
  const messages = [{ role: 'user', content: 'Hello, my name is Emma.' }];
  const first = await generateText({ ...common, messages });
  messages.push(...first.response.messages, { role: 'user', content: 'What is my name?' });
  assert.match((await generateText({ ...common, messages })).text, /Emma/);
});

test('provider options reach the server', async () => {
  const result = await generateText({ ...common, prompt: sumQuestion, providerOptions: { glm53: { reasoningEffort: 'none' } } });
  assert.match(result.text, /^8 \* 7 = 56/);
  assert.equal(result.reasoningText, undefined);
});

test('refusals carry status and message', async () => {
  const error = await rejection(() => generateText({ ...common, prompt: 'hi', topP: 7 }));
  assert.ok(APICallError.isInstance(error));
  assert.equal(error.statusCode, 400);
  assert.match(error.message, /top_p/);
  const stranger = createOpenAICompatible({ name: 'glm53', baseURL: `${baseURL}/v1`, apiKey: 'wrong' });
  const refused = await rejection(() => generateText({ ...common, model: stranger('GLM-5.3-Flash-EXL3'), prompt: 'hi' }));
  assert.equal(refused.statusCode, 401);
  const unknown = await rejection(() => generateText({ ...common, model: provider('gpt-4o'), prompt: 'hi' }));
  assert.equal(unknown.statusCode, 404);
});

test('an aborted stream leaves the server idle', async () => {
  const aborts = new AbortController();
  const result = streamText({
    ...common, prompt: storyQuestion, maxOutputTokens: 6000, abortSignal: aborts.signal,
    providerOptions: { glm53: { ignore_eos: true } },
  });
  let pieces = 0;
  let aborted = false;
  for await (const part of result.fullStream) {
    if (part.type.endsWith('-delta') && ++pieces === 5) aborts.abort();
    aborted ||= part.type === 'abort';
  }
  assert.ok(aborted && pieces < 500);
  await assertIdle();
});

await run('ai sdk');
