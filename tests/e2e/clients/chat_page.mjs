// The chat page in headless Chromium: node chat_page.mjs BASE_URL API_KEY CHROMIUM SCREENSHOT_FOLDER.
import assert from 'node:assert/strict';
import { chromium } from 'playwright-core';
import { Gate } from './gate.mjs';
import {
  apiKey, assertIdle, baseURL, countAnswer, countQuestion, endless, eventually, functions, run, storyQuestion,
  sumQuestion, test, toolResult, weatherAnswer, weatherQuestion,
} from './harness.mjs';

const [executablePath, screenshots] = process.argv.slice(4);
const gate = await Gate.before(baseURL);
const browser = await chromium.launch({
  executablePath,
  chromiumSandbox: false, // needs user namespaces, which containers often lack
  args: ['--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync'],
});

/** A page that has the key already; fails when the console or the network says something that it should not. */
async function open({ key = apiKey, errors = [], ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 900, height: 800 }, ...options });
  const page = await context.newPage();
  const complaints = [];
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) complaints.push(message.text());
  });
  page.on('pageerror', (error) => complaints.push(String(error)));
  context.on('request', (request) => {
    const { origin, protocol } = new URL(request.url());
    if (origin !== gate.url && protocol !== 'data:') complaints.push(`request to ${request.url()}`);
  });
  page.setDefaultTimeout(60_000);
  if (key) await page.addInitScript((value) => sessionStorage.setItem('glm53-serve api key', value), key);
  await page.goto(gate.url);
  return {
    page,
    reply: page.locator('.message.assistant').last(),
    async send(text) {
      await page.getByLabel('Message').fill(text);
      await page.getByRole('button', { name: 'Send', exact: true }).click();
    },
    /** The reply has ended: the composer can send again. */
    ended: () => page.locator('#log[aria-busy=false]').waitFor(),
    async close() {
      await context.close();
      assert.deepEqual(complaints.filter((text) => !errors.some((expected) => expected.test(text))), []);
    },
  };
}

const temperature0 = async (page) => {
  await page.getByRole('button', { name: 'Settings' }).click();
  await page.getByLabel('Temperature').fill('0');
  await page.getByRole('button', { name: 'Settings' }).click();
};

/** A stream that the server did not write, for what the tiny model never says. */
const scripted = (page, deltas) => page.route('**/v1/chat/completions', (route) => route.fulfill({
  contentType: 'text/event-stream',
  body: [...deltas.map((delta) => ({ choices: [{ index: 0, delta, finish_reason: null }] })),
    { choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] },
  ].map((chunk) => `data: ${JSON.stringify(chunk)}\n\n`).join('') + 'data: [DONE]\n\n',
}));

test('model and context are shown', async () => {
  const { page, close } = await open();
  await page.getByRole('heading', { name: 'GLM-5.3-Flash-EXL3' }).waitFor();
  await page.getByText('8,192 tokens of context').waitFor();
  await close();
});

test('a message is answered: reasoning, answer, speed', async () => {
  const { page, reply, send, ended, close } = await open();
  await temperature0(page);
  await send(countQuestion);
  await ended();
  assert.equal(await page.locator('.message.user').innerText(), countQuestion);
  assert.equal(await reply.locator('.content').innerText(), countAnswer);
  assert.match(await reply.locator('.facts').innerText(), /^56 tokens · [\d.]+ tokens\/s · first token after [\d.]+ s$/);
  const reasoning = reply.locator('details.reasoning');
  assert.equal(await reasoning.getAttribute('open'), null, 'folded once the answer began');
  await reasoning.locator('summary').click();
  assert.match(await reasoning.locator('div').innerText(), /^I write the numbers from 1 to 20/);
  await send(sumQuestion);
  await ended();
  assert.match(await reply.locator('.content').innerText(), /8 \* 7 = 56/);
  assert.ok(await page.evaluate(() => {
    const log = document.getElementById('log');
    return log.scrollHeight - log.scrollTop - log.clientHeight < 2;
  }), 'the end of the reply is in view');
  await page.screenshot({ path: `${screenshots}/chat_page.png` });
  await close();
});

test('the reply is shown while it is written, code as code', async () => {
  const { page, reply, send, ended, close } = await open();
  await temperature0(page);
  const shown = async () => (await reply.locator('.reasoning div, .content').allTextContents()).join('').length;
  gate.hold();
  await send('Write Python functions clamp_00 to clamp_09.');
  for (let step = 0, before = 0; step < 3 || (await reply.locator('pre').count()) === 0; ++step) {
    assert.ok(step < 50, 'code is shown as soon as it comes');
    gate.pass(10);
    assert.ok(await eventually(async () => (await shown()) > before, 30_000), 'what has come is shown');
    before = await shown();
  }
  assert.equal(await page.locator('#log').getAttribute('aria-busy'), 'true');
  gate.open();
  await ended();
  assert.match(await reply.locator('pre').innerText(), /^def clamp_00\(x\):\n    return max\(0, min\(x, 0\)\)\ndef clamp_01/);
  assert.ok(!(await reply.locator('.content').innerText()).includes('```'));
  await close();
});

test('settings reach the server', async () => {
  const { page, reply, send, ended, close } = await open();
  let sent;
  page.on('request', (request) => {
    if (request.method() === 'POST') sent = request.postDataJSON();
  });
  await page.getByRole('button', { name: 'Settings' }).click();
  await page.getByLabel('System prompt').fill('You are helpful.');
  await page.getByLabel('Temperature').fill('0');
  await page.getByLabel('Max tokens').fill('3');
  await page.getByLabel('Effort').selectOption('low');
  await send(countQuestion);
  await ended();
  assert.equal(sent.reasoning_effort, 'low');
  assert.match(await reply.locator('.facts').innerText(), /^3 tokens .* cut at the token limit$/);
  await page.getByLabel('Max tokens').fill('');
  await page.getByLabel('Thinking').uncheck();
  await send(sumQuestion);
  await ended();
  assert.equal(await reply.locator('details.reasoning').count(), 0);
  assert.match(await reply.locator('.content').innerText(), /^8 \* 7 = 56/);
  assert.deepEqual([sent.temperature, sent.messages[0], sent.messages.map((message) => message.role), sent.chat_template_kwargs],
    [0, { role: 'system', content: 'You are helpful.' }, ['system', 'user', 'assistant', 'user'], { enable_thinking: false }]);
  await page.getByLabel('Tools').fill('[{]');
  await send('hi');
  await reply.getByRole('alert').getByText('The tools are not JSON').waitFor();
  await page.screenshot({ path: `${screenshots}/chat_page_settings.png` });
  await close();
});

test('a tool call is shown; its result brings the answer', async () => {
  const { page, reply, send, ended, close } = await open();
  await page.getByRole('button', { name: 'Settings' }).click();
  await page.getByLabel('Temperature').fill('0');
  await page.getByLabel('Tools').fill(JSON.stringify(functions.map((definition) => ({ type: 'function', function: definition }))));
  await page.getByRole('button', { name: 'Settings' }).click();
  await send(weatherQuestion);
  await ended();
  assert.equal(await reply.locator('.call summary').innerText(), 'Tool call: get_weather');
  assert.deepEqual(JSON.parse(await reply.locator('.call pre').innerText()), { city: 'London' });
  await reply.getByLabel('Result').fill(toolResult);
  await page.screenshot({ path: `${screenshots}/chat_page_tools.png` });
  await reply.getByRole('button', { name: 'Send result' }).click();
  await page.getByText(weatherAnswer).waitFor();
  await ended();
  assert.equal(await page.getByRole('button', { name: 'Send result' }).count(), 0);
  await close();
});

test('Stop ends the reply, here and on the server', async () => {
  const { page, reply, send, ended, close } = await open();
  await page.getByRole('button', { name: 'Settings' }).click();
  await page.getByLabel('Thinking').uncheck();
  await page.route('**/v1/chat/completions', (route) => route.continue({
    postData: { ...route.request().postDataJSON(), ...endless },
  }));
  gate.hold();
  await send(storyQuestion);
  gate.pass(10);
  await reply.locator('.content').waitFor();
  await page.getByRole('button', { name: 'Stop' }).click();
  await ended();
  await assertIdle();
  gate.open();
  assert.match(await reply.locator('.facts').innerText(), /stopped$/);
  await page.unroute('**/v1/chat/completions');
  await page.getByLabel('Temperature').fill('0');
  await send(sumQuestion);
  await ended();
  assert.match(await reply.locator('.content').innerText(), /8 \* 7 = 56/);
  await close();
});

test('a key is asked for; a wrong one is said to be wrong', async () => {
  const { page, reply, send, ended, close } = await open({ key: '', errors: [/status of 401/] });
  await page.getByLabel('API key').fill('wrong');
  await page.getByRole('button', { name: 'Use this key' }).click();
  await page.getByRole('alert').getByText('missing or wrong API key').waitFor();
  await send('hi');
  await reply.getByRole('alert').getByText('missing or wrong API key').waitFor();
  await page.screenshot({ path: `${screenshots}/chat_page_key.png` });
  await page.getByLabel('API key').fill(apiKey);
  await page.getByRole('button', { name: 'Use this key' }).click();
  await page.getByRole('heading', { name: 'GLM-5.3-Flash-EXL3' }).waitFor();
  assert.ok(!(await page.getByLabel('API key').isVisible()));
  await reply.getByRole('button', { name: 'Try again' }).click();
  await ended();
  await reply.locator('.content').waitFor();
  await close();
});

test('a refusal shows the server\'s words', async () => {
  const { page, reply, send, ended, close } = await open({ errors: [/status of 400/] });
  await send('goat '.repeat(9000));
  await ended();
  await reply.getByRole('alert').getByText("This model's maximum context length is 8192 tokens").waitFor();
  await close();
});

test('what a model writes is text, never markup', async () => {
  const { page, reply, send, ended, close } = await open();
  const hostile = '<img src=x onerror="alert(1)"><script>alert(2)</script> **bold** `<b>`\n\n```html\n<svg onload=alert(3)>\n```\nend';
  await scripted(page, [
    { reasoning_content: '<iframe src="https://example.com">' }, ...[...hostile].map((content) => ({ content })),
    { tool_calls: [{ index: 0, id: 'c1', type: 'function', function: { name: '<i>f</i>', arguments: '{"a": ' } }] },
    { tool_calls: [{ index: 0, function: { arguments: '"<b>"}' } }] },
  ]);
  await send('<u>hi</u>');
  await ended();
  assert.equal(await page.locator('#log :is(img, script, svg, iframe, b, i, u)').count(), 0);
  assert.equal(await reply.locator('p').first().innerText(), '<img src=x onerror="alert(1)"><script>alert(2)</script> bold <b>');
  assert.equal(await reply.locator('.content pre').innerText(), '<svg onload=alert(3)>');
  assert.equal(await reply.locator('p').last().innerText(), 'end');
  assert.equal(await reply.locator('.call summary').innerText(), 'Tool call: <i>f</i>');
  assert.equal(await reply.locator('.call pre').innerText(), '{\n  "a": "<b>"\n}');
  await close();
});

test('it fits a phone, in the dark', async () => {
  const { page, reply, send, ended, close } = await open({
    viewport: { width: 360, height: 640 }, isMobile: true, hasTouch: true, colorScheme: 'dark', deviceScaleFactor: 2,
  });
  await temperature0(page);
  await send('Write Python functions clamp_00 to clamp_09.');
  await ended();
  await reply.locator('pre').waitFor();
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= window.innerWidth), 'no sideways scrolling');
  for (const name of ['Send', 'Settings', 'New chat']) assert.ok(await page.getByRole('button', { name }).isVisible());
  await page.screenshot({ path: `${screenshots}/chat_page_phone.png` });
  await page.getByRole('button', { name: 'Settings' }).click();
  await page.screenshot({ path: `${screenshots}/chat_page_phone_settings.png` });
  await page.getByRole('button', { name: 'New chat' }).click();
  assert.equal(await page.locator('.message').count(), 0);
  await close();
});

await run('chat page', 180_000);
