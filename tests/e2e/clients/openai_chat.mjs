// The OpenAI SDK on /v1/chat/completions, /v1/completions and /v1/models.
import assert from 'node:assert/strict';
import OpenAI from 'openai';
import {
  apiKey, assertIdle, baseURL, collect, countAnswer, countQuestion, endless, eventually, rejection, run, running,
  storyQuestion, sumQuestion, test,
} from './harness.mjs';

const client = new OpenAI({ baseURL: `${baseURL}/v1`, apiKey, maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const ask = (content, more = {}) => ({ model, temperature: 0, messages: [{ role: 'user', content }], ...more });
const noThinking = { chat_template_kwargs: { enable_thinking: false } };

test('models are listed and retrieved', async () => {
  const listed = await collect(client.models.list());
  assert.deepEqual(listed.map((entry) => [entry.object, entry.owned_by]), [['model', 'glm53-serve']]);
  assert.equal((await client.models.retrieve(model)).id, model);
  assert.ok((await rejection(() => client.models.retrieve('gpt-4o'))) instanceof OpenAI.NotFoundError);
});

test('a whole reply', async () => {
  const reply = await client.chat.completions.create(ask(countQuestion));
  const [choice] = reply.choices;
  assert.equal(choice.message.content, countAnswer);
  assert.ok(choice.message.reasoning_content.length > 0);
  assert.equal(choice.finish_reason, 'stop');
  assert.equal(reply.usage.total_tokens, reply.usage.prompt_tokens + reply.usage.completion_tokens);
  assert.ok(reply.usage.completion_tokens_details.reasoning_tokens > 0);
});

test('a streamed reply is the whole one, in many pieces', async () => {
  const whole = await client.chat.completions.create(ask(countQuestion));
  const chunks = await collect(await client.chat.completions.create(
    ask(countQuestion, { stream: true, stream_options: { include_usage: true } })));
  const deltas = chunks.flatMap((chunk) => chunk.choices).map((choice) => choice.delta);
  assert.equal(deltas.map((delta) => delta.content ?? '').join(''), whole.choices[0].message.content);
  assert.equal(deltas.map((delta) => delta.reasoning_content ?? '').join(''), whole.choices[0].message.reasoning_content);
  assert.ok(deltas.length > 20);
  assert.deepEqual(chunks.at(-1).usage, whole.usage);
});

test('the stream helper assembles the same message', async () => {
  const stream = client.chat.completions.stream(ask(countQuestion, { stream_options: { include_usage: true } }));
  let text = '';
  stream.on('content', (delta) => { text += delta; });
  const reply = await stream.finalChatCompletion();
  assert.equal(text, countAnswer);
  assert.equal(reply.choices[0].message.content, countAnswer);
  assert.equal(reply.choices[0].finish_reason, 'stop');
  assert.ok((await stream.totalUsage()).completion_tokens > 20);
});

test('effort "none" answers without reasoning', async () => {
  const reply = await client.chat.completions.create(ask(sumQuestion, { reasoning_effort: 'none' }));
  assert.match(reply.choices[0].message.content, /^8 \* 7 = 56/);
  assert.equal(reply.choices[0].message.reasoning_content, undefined);
});

test('a conversation is remembered', async () => {
  const messages = [{ role: 'system', content: 'You are helpful.' }, { role: 'user', content: 'Hello, my name is Emma.' }];
  const first = await client.chat.completions.create({ model, messages, temperature: 0, ...noThinking });
  messages.push(first.choices[0].message, { role: 'user', content: 'What is my name?' });
  const second = await client.chat.completions.create({ model, messages, temperature: 0, ...noThinking });
  assert.match(second.choices[0].message.content, /Emma/);
});

test('logprobs: whole and streamed are the same, best first, and spell the reply', async () => {
  const question = ask(sumQuestion, { ...noThinking, logprobs: true, top_logprobs: 3 });
  const reply = await client.chat.completions.create(question);
  const tokens = reply.choices[0].logprobs.content;
  assert.equal(tokens.length, reply.usage.completion_tokens);
  for (const token of tokens) {
    assert.equal(token.top_logprobs.length, 3);
    const sorted = [...token.top_logprobs].sort((a, b) => b.logprob - a.logprob);
    assert.deepEqual(token.top_logprobs, sorted);
    assert.equal(token.token, token.top_logprobs[0].token, 'greedy takes the best');
    assert.equal(Buffer.from(token.bytes).toString(), token.token);
  }
  const spelled = Buffer.concat(tokens.map((token) => Buffer.from(token.bytes))).toString();
  assert.ok(spelled.startsWith(reply.choices[0].message.content));
  const chunks = await collect(await client.chat.completions.create({ ...question, stream: true }));
  assert.deepEqual(chunks.flatMap((chunk) => chunk.choices[0]?.logprobs?.content ?? []), tokens);
});

test('n choices, whole and streamed', async () => {
  const question = ask(storyQuestion, { ...noThinking, n: 3, seed: 5, temperature: 1, max_tokens: 12 });
  const whole = await client.chat.completions.create(question);
  assert.deepEqual(whole.choices.map((choice) => choice.index), [0, 1, 2]);
  const texts = whole.choices.map((choice) => choice.message.content);
  assert.ok(new Set(texts).size > 1, 'choices draw apart');
  const streamed = ['', '', ''];
  for await (const chunk of await client.chat.completions.create({ ...question, stream: true })) {
    for (const choice of chunk.choices) streamed[choice.index] += choice.delta.content ?? '';
  }
  assert.deepEqual(streamed, texts);
});

test('stop, max_tokens and seed', async () => {
  const stopped = await client.chat.completions.create(ask(countQuestion, { stop: '\n7\n' }));
  assert.equal(stopped.choices[0].message.content, '1\n2\n3\n4\n5\n6');
  const cut = await client.chat.completions.create(ask(countQuestion, { max_completion_tokens: 3 }));
  assert.deepEqual([cut.choices[0].finish_reason, cut.usage.completion_tokens], ['length', 3]);
  const seeded = ask(storyQuestion, { temperature: 1.2, seed: 11, max_tokens: 20, ...noThinking });
  const [first, second] = await Promise.all([1, 2].map(() => client.chat.completions.create(seeded)));
  assert.equal(first.choices[0].message.content, second.choices[0].message.content);
});

test('text completions, whole, streamed and several prompts', async () => {
  const request = { model, prompt: 'Once upon a time, a tiny owl named', max_tokens: 10, temperature: 0, logprobs: 2 };
  const whole = await client.completions.create(request);
  assert.match(whole.choices[0].text, /^ Lily lived/);
  assert.equal(whole.choices[0].logprobs.tokens.join(''), whole.choices[0].text);
  const chunks = await collect(await client.completions.create({ ...request, stream: true }));
  assert.equal(chunks.map((chunk) => chunk.choices[0]?.text ?? '').join(''), whole.choices[0].text);
  const two = await client.completions.create({ ...request, prompt: [request.prompt, 'Once upon a time,'], echo: true });
  assert.deepEqual(two.choices.map((choice) => choice.index), [0, 1]);
  assert.ok(two.choices[0].text.startsWith(request.prompt));
});

// ---- refusals, by the SDK's classes

test('400 is a BadRequestError naming the parameter', async () => {
  const error = await rejection(() => client.chat.completions.create(ask('hi', { temperature: -1 })));
  assert.ok(error instanceof OpenAI.BadRequestError);
  assert.deepEqual([error.status, error.type, error.param], [400, 'invalid_request_error', 'temperature']);
  assert.ok(error.requestID);
});

test('a stream is refused before it starts', async () => {
  const error = await rejection(() => client.chat.completions.create(ask('hi', { stream: true, top_p: 7 })));
  assert.ok(error instanceof OpenAI.BadRequestError);
  assert.equal(error.param, 'top_p');
});

test('a prompt beyond the context has the code clients look for', async () => {
  const error = await rejection(() => client.chat.completions.create(ask('goat '.repeat(9000))));
  assert.ok(error instanceof OpenAI.BadRequestError);
  assert.equal(error.code, 'context_length_exceeded');
  assert.match(error.message, /maximum context length is 8192 tokens/);
});

test('401 is an AuthenticationError', async () => {
  const stranger = new OpenAI({ baseURL: `${baseURL}/v1`, apiKey: 'wrong', maxRetries: 0 });
  const error = await rejection(() => stranger.chat.completions.create(ask('hi')));
  assert.ok(error instanceof OpenAI.AuthenticationError);
  assert.equal(error.code, 'invalid_api_key');
});

test('404 is a NotFoundError, for a model and for a route', async () => {
  const error = await rejection(() => client.chat.completions.create({ ...ask('hi'), model: 'gpt-4o' }));
  assert.ok(error instanceof OpenAI.NotFoundError);
  assert.equal(error.code, 'model_not_found');
  assert.ok((await rejection(() => client.embeddings.create({ model, input: 'hi' }))) instanceof OpenAI.NotFoundError);
});

test('429 is a RateLimitError with Retry-After, and the SDK retries it', async () => {
  const aborts = new AbortController();
  const { signal } = aborts;
  const held = Array.from({ length: 9 }, () =>
    client.chat.completions.create(ask(storyQuestion, { ...endless, stream: true }), { signal }).catch((error) => error));
  try {
    // A stream's headers come once it is queued: one runs, eight wait, which is scheduler.max_queued here.
    await Promise.all(held);
    const error = await rejection(() => client.chat.completions.create(ask('hi')));
    assert.ok(error instanceof OpenAI.RateLimitError);
    assert.deepEqual([error.code, error.headers.get('retry-after')], ['queue_full', '5']);
    // The queue empties while the SDK waits the five seconds of Retry-After.
    let tries = 0;
    const counting = (...request) => {
      ++tries;
      return fetch(...request);
    };
    const patient = client.withOptions({ maxRetries: 1, fetch: counting });
    setTimeout(() => aborts.abort(), 200);
    const reply = await patient.chat.completions.create(ask(sumQuestion, noThinking));
    assert.match(reply.choices[0].message.content, /56/);
    assert.equal(tries, 2);
  } finally {
    aborts.abort();
  }
  await assertIdle();
});

// ---- abort

test('an aborted stream leaves the server idle', async () => {
  const aborts = new AbortController();
  const stream = await client.chat.completions.create(
    ask(storyQuestion, { ...endless, stream: true }), { signal: aborts.signal });
  let pieces = 0;
  for await (const _ of stream) {
    if (++pieces === 5) aborts.abort();
  }
  assert.ok(pieces >= 5 && pieces < 500);
  await assertIdle();
});

test('leaving the loop ends a stream too', async () => {
  for await (const chunk of await client.chat.completions.create(ask(storyQuestion, { ...endless, stream: true }))) {
    if (chunk.choices[0]?.delta.content !== '') break;
  }
  await assertIdle();
});

test('an aborted whole reply leaves the server idle', async () => {
  const aborts = new AbortController();
  const reply = client.chat.completions.create(ask(storyQuestion, endless), { signal: aborts.signal });
  const refused = rejection(() => reply);
  assert.ok(await eventually(async () => (await running()) === 1, 5000));
  aborts.abort();
  assert.ok((await refused) instanceof OpenAI.APIUserAbortError);
  await assertIdle();
});

test('a client that runs out of time frees the server', async () => {
  const error = await rejection(() => client.chat.completions.create(ask(storyQuestion, endless), { timeout: 300 }));
  assert.ok(error instanceof OpenAI.APIConnectionTimeoutError);
  await assertIdle();
});

await run('openai chat');
