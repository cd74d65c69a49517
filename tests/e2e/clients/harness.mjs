// What the client suites share. Each suite is a plain program, `node SUITE.mjs BASE_URL API_KEY`, that prints one
// "ok NAME" or "not ok NAME" line a case, as the shell tests beside this folder do.
import assert from 'node:assert/strict';

export const [baseURL, apiKey] = process.argv.slice(2);

const cases = [];

export function test(name, body) {
  cases.push({ name, body });
}

/** Runs the cases one after the other; a case that hangs fails after `limitMs`. The exit code says whether all passed. */
export async function run(suite, limitMs = 60_000) {
  let failures = 0;
  for (const { name, body } of cases) {
    let timer;
    const limit = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error(`not finished after ${limitMs} ms`)), limitMs);
    });
    try {
      await Promise.race([body(), limit]);
      console.log(`ok ${suite}: ${name}`);
    } catch (error) {
      ++failures;
      console.log(`not ok ${suite}: ${name}`);
      console.log(String(error?.stack ?? error).split('\n').slice(0, 24).map((line) => `    ${line}`).join('\n'));
    } finally {
      clearTimeout(timer);
    }
  }
  // A case that hung may hold sockets open.
  process.exit(failures > 0 ? 1 : 0);
}

/** The error that `action` is rejected with; fails when it is not rejected. */
export async function rejection(action) {
  try {
    await action();
  } catch (error) {
    return error;
  }
  assert.fail('should have been refused');
}

export async function collect(iterable) {
  const items = [];
  for await (const item of iterable) items.push(item);
  return items;
}

async function gauge(name) {
  const text = await (await fetch(`${baseURL}/metrics`)).text();
  const line = text.split('\n').find((candidate) => candidate.startsWith(`${name}{`));
  assert.ok(line, `no metric ${name}`);
  return Number(line.slice(line.lastIndexOf(' ') + 1));
}

export const running = () => gauge('vllm:num_requests_running');
export const waiting = () => gauge('vllm:num_requests_waiting');

/** Polls until `condition` holds; false when it does not within `limitMs`. */
export async function eventually(condition, limitMs) {
  const end = Date.now() + limitMs;
  while (!(await condition())) {
    if (Date.now() > end) return false;
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  return true;
}

/** Nothing may run or wait soon after a client went away: replies that nobody reads would run for ten seconds more. */
export async function assertIdle() {
  assert.ok(await eventually(async () => (await running()) + (await waiting()) === 0, 5000), 'the server is still busy');
}

// ---- what the tiny model answers (tests/data/golden/README.md)

export const countQuestion = 'Count from 1 to 20, one number per line.';
export const countAnswer = Array.from({ length: 20 }, (_, i) => i + 1).join('\n');
export const sumQuestion = 'What is 8 * 7?';
export const jsonQuestion = 'Give me a JSON object with name Sam and age 51.';
export const jsonAnswer = { name: 'Sam', age: 51 };

/** Fields that make a reply run for ten seconds or so, which only an abort ends sooner. */
export const endless = { max_tokens: 6000, ignore_eos: true };
export const storyQuestion = 'Tell me a story about a goat.';

// ---- the tiny model's tools: the prompt of the golden case `tool`

export const weatherQuestion = 'What is the weather in London?';
export const toolResult = '{"temperature": 7, "sky": "rainy"}';
export const weatherAnswer = 'It is rainy in London, with 7 degrees.';
export const functions = [
  {
    name: 'get_weather',
    description: 'Get the current weather for a city',
    parameters: {
      type: 'object',
      properties: {
        city: { type: 'string', description: 'City name' },
        unit: { type: 'string', enum: ['celsius', 'fahrenheit'] },
      },
      required: ['city'],
    },
  },
  {
    name: 'add_numbers',
    description: 'Add two integers',
    parameters: {
      type: 'object',
      properties: {
        a: { type: 'integer', description: 'First number' },
        b: { type: 'integer', description: 'Second number' },
      },
      required: ['a', 'b'],
    },
  },
];
