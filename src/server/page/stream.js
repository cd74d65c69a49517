// The server's API as the page uses it.

/** A refusal or a failure in a stream, with the server's own words. */
export class ApiFailure extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

async function call(path, key, options = {}) {
  const headers = { 'Content-Type': 'application/json' };
  if (key) headers.Authorization = `Bearer ${key}`;
  const response = await fetch(path, { ...options, headers });
  if (response.ok) return response;
  const text = await response.text();
  let message = text.slice(0, 500) || response.statusText;
  try {
    message = JSON.parse(text).error.message;
  } catch {
    // Not the server's own error: something between here and there.
  }
  throw new ApiFailure(message, response.status);
}

export async function servedModel(key) {
  return (await (await call('v1/models', key)).json()).data[0];
}

/** The chunks of a streamed chat completion. Leaving the loop, or `signal`, ends the reply on the server too. */
export async function* chatChunks(request, key, signal) {
  const body = JSON.stringify({
    ...request,
    stream: true,
    // Also while it runs, so that a reply that is stopped has its numbers.
    stream_options: { include_usage: true, continuous_usage_stats: true },
  });
  const response = await call('v1/chat/completions', key, { method: 'POST', body, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new ApiFailure('the connection ended before the reply did');
      text += value;
      for (let end = text.indexOf('\n\n'); end >= 0; end = text.indexOf('\n\n')) {
        const event = text.slice(0, end);
        text = text.slice(end + 2);
        if (!event.startsWith('data: ')) continue;
        const data = event.slice(6);
        if (data === '[DONE]') return;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new ApiFailure(chunk.error.message);
        yield chunk;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
