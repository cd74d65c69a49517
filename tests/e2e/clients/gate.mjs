// A server before the server: it passes everything on, but the events of streamed replies only as far as a test lets
// them, so that what is seen while a reply is written depends on no machine's speed.
import http from 'node:http';

export class Gate {
  #server;
  #allowed = Infinity; // events that may pass
  #wake = () => {};

  /** `target` is the server's URL. */
  static async before(target) {
    const gate = new Gate();
    gate.#server = http.createServer((request, response) => gate.#serve(new URL(request.url, target), request, response));
    await new Promise((resolve) => gate.#server.listen(0, '127.0.0.1', resolve));
    gate.url = `http://127.0.0.1:${gate.#server.address().port}`;
    return gate;
  }

  /** From now on events wait. */
  hold() { this.#allowed = 0; }

  pass(events) {
    this.#allowed += events;
    this.#wake();
  }

  open() { this.pass(Infinity); }

  #serve(url, request, response) {
    const onward = http.request(url, { method: request.method, headers: request.headers }, async (reply) => {
      response.writeHead(reply.statusCode, reply.headers);
      if (!reply.headers['content-type']?.startsWith('text/event-stream')) {
        reply.pipe(response);
        return;
      }
      response.flushHeaders();
      try {
        for await (const event of eventsOf(reply)) {
          while (this.#allowed === 0) await new Promise((resolve) => { this.#wake = resolve; });
          this.#allowed -= 1;
          response.write(event);
        }
      } catch {
        // The client has left, which has ended the reply.
      }
      response.end();
    });
    onward.on('error', () => response.destroy());
    response.on('close', () => onward.destroy());
    request.pipe(onward);
  }
}

async function* eventsOf(reply) {
  let text = '';
  for await (const piece of reply.setEncoding('utf8')) {
    text += piece;
    for (let end = text.indexOf('\n\n'); end >= 0; end = text.indexOf('\n\n')) {
      yield text.slice(0, end + 2);
      text = text.slice(end + 2);
    }
  }
}
