'use strict';
// The part of Markdown that models write, as DOM nodes: nothing of an answer is read as HTML.
// Headings, paragraphs, lists, quotes, fenced code; `code`, **bold** and *italic* in a line.

const inlineMarks = new RegExp([
  /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)/,
  /\*\*(\S(?:[\s\S]*?\S)?)\*\*/,
  /(?<![\w*])\*(\S(?:[^*]*?\S)?)\*(?![\w*])/,
].map((mark) => mark.source).join('|'), 'g');

function inlineNodes(text) {
  const nodes = [];
  let at = 0;
  for (const match of text.matchAll(inlineMarks)) {
    nodes.push(text.slice(at, match.index));
    const [whole, , code, bold, italic] = match;
    const node = document.createElement(code !== undefined ? 'code' : bold ? 'strong' : 'em');
    if (code !== undefined) node.textContent = code;
    else node.append(...inlineNodes(bold ?? italic));
    nodes.push(node);
    at = match.index + whole.length;
  }
  nodes.push(text.slice(at));
  return nodes.filter((node) => node !== '');
}

function codeBlock(language, lines) {
  const pre = document.createElement('pre');
  if (language) pre.dataset.language = language;
  pre.textContent = lines.join('\n');
  return pre;
}

// What kind of block a line belongs to.
function lineKind(line) {
  if (/^\s*$/.test(line)) return 'blank';
  if (/^\s*(```|~~~)/.test(line)) return 'fence';
  if (/^#{1,6}\s/.test(line)) return 'h';
  if (/^\s*[-*+]\s+/.test(line)) return 'ul';
  if (/^\s*\d{1,4}[.)]\s+/.test(line)) return 'ol';
  return /^\s*>/.test(line) ? 'blockquote' : 'p';
}

const markOf = {
  ul: /^\s*[-*+]\s+/, ol: /^\s*\d{1,4}[.)]\s+/, blockquote: /^\s*>\s?/, h: /^#+\s+/,
};

function block(kind, lines) {
  const node = document.createElement(kind === 'h' ? 'h3' : kind);
  if (kind === 'ul' || kind === 'ol') {
    if (kind === 'ol') node.start = parseInt(lines[0], 10);
    for (const line of lines) {
      const item = document.createElement('li');
      item.append(...inlineNodes(line.replace(markOf[kind], '')));
      node.append(item);
    }
  } else {
    node.append(...inlineNodes(lines.map((l) => l.replace(markOf[kind] ?? /^/, '')).join('\n')));
  }
  return node;
}

function renderMarkdown(text) {
  const lines = text.split('\n');
  const blocks = [];
  for (let i = 0; i < lines.length;) {
    const kind = lineKind(lines[i]);
    const begin = i++;
    if (kind === 'blank') continue;
    if (kind === 'fence') {
      const mark = lines[begin].trim().slice(0, 3);
      while (i < lines.length && !lines[i].trim().startsWith(mark)) i++;
      blocks.push(codeBlock(lines[begin].trim().slice(3).trim(), lines.slice(begin + 1, i++)));
      continue;
    }
    while (kind !== 'h' && i < lines.length && lineKind(lines[i]) === kind) i++;
    blocks.push(block(kind, lines.slice(begin, i)));
  }
  return blocks;
}
