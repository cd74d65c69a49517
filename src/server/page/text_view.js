// Text that grows, shown as paragraphs and code. Only the last block is built anew when text arrives, so a long reply
// costs no more a token than a short one. All text goes in as text nodes: nothing a model writes becomes markup.

const kInline = /(`[^`\n]+`|\*\*[^*\n]+\*\*)/;

function fillParagraph(element, text) {
  element.replaceChildren(...text.split(kInline).map((part, i) => {
    if (i % 2 === 0) return document.createTextNode(part);
    const bold = part.startsWith('**');
    const child = document.createElement(bold ? 'strong' : 'code');
    child.textContent = bold ? part.slice(2, -2) : part.slice(1, -1);
    return child;
  }));
}

export class TextView {
  constructor(parent) {
    this.parent = parent;
    this.line = ''; // the last line, not yet ended
    this.lines = []; // whole lines of the block that grows
    this.block = null; // its element
    this.inCode = false;
  }

  append(text) {
    const lines = (this.line + text).split('\n');
    this.line = lines.pop();
    for (const line of lines) this.#take(line);
    this.#show();
  }

  /** No more text comes. */
  end() {
    this.#take(this.line);
    this.line = '';
    this.#endBlock();
  }

  #take(line) {
    if (/^\s*```/.test(line)) {
      this.#endBlock();
      this.inCode = !this.inCode;
    } else if (line.trim() === '' && !this.inCode) {
      this.#endBlock();
    } else {
      this.lines.push(line);
    }
  }

  #endBlock() {
    if (this.lines.length > 0) this.#fill(this.lines.join('\n'));
    else this.block?.remove();
    this.lines = [];
    this.block = null;
  }

  #fill(text) {
    if (!this.block) {
      this.block = document.createElement(this.inCode ? 'pre' : 'p');
      this.parent.append(this.block);
    }
    if (this.inCode) this.block.textContent = text;
    else fillParagraph(this.block, text);
  }

  #show() {
    // A line that may still become a fence is not shown yet.
    const fence = /^\s*(`{1,2}$|```)/.test(this.line);
    const shown = this.line === '' || fence ? this.lines : [...this.lines, this.line];
    if (shown.length > 0) this.#fill(shown.join('\n'));
  }
}
