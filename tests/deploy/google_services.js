// Makes Google's services out of `world`; what the script does with them is in `seen` and `world` afterwards.
(() => {
Object.assign(seen, { requests: [], logs: [], triggers: world.triggers || [], created: [], error: null });
Object.assign(seen, { locked: 0, released: 0 });
const names = new Set(world.labels || ['mailonce']);
let clock = 1_000_000;

// Bytes are signed, as in Java.
const attachment = (given) => ({
  getName: () => given.name,
  getContentType: () => given.content_type,
  getBytes: () => given.bytes,
});
const message = (given) => ({
  getId: () => given.id,
  isDraft: () => Boolean(given.draft),
  getSubject: () => given.subject,
  getFrom: () => given.from,
  getDate: () => new Date(given.date),
  getBody: () => given.html,
  getPlainBody: () => given.text,
  getTo: () => given.to,
  getCc: () => given.cc,
  getAttachments: ({ includeInlineImages = true, includeAttachments = true }) =>
    (given.files || []).filter((file) => (file.inline ? includeInlineImages : includeAttachments)).map(attachment),
  getRawContent: () => `${given.head}\r\n\r\n${given.text}`,
  getThread: () => ({ getId: () => 'thread-1' }),
});
const thread = (given) => {
  let loaded = null;
  return {
    getMessages: () => (loaded = loaded || given.messages.map(message)),
    refresh: () => { loaded = null; },
    removeLabel: (label) => { given.labels = given.labels.filter((name) => name !== label.name); },
    addLabel: (label) => { given.labels.push(label.name); },
  };
};
const label = (name) => ({
  name,
  getThreads: (start, max) =>
    world.threads.filter((given) => given.labels.includes(name)).slice(start, start + max).map(thread),
});
const fetch = (url, options) => {
  seen.requests.push({ url, ...options, payload: JSON.parse(options.payload) });
  clock += world.fetch_ms || 0;
  for (const arrived of world.arriving || []) world.threads[0].messages.push(arrived);
  world.arriving = [];
  const answer = (world.answers || {})[JSON.parse(options.payload).message_id] || 200;
  if (answer === 'unreachable') throw new Error('Address unavailable: secret subject');
  return { getResponseCode: () => answer };
};
const trigger = (handler) => ({ getHandlerFunction: () => handler });
Object.assign(globalThis, {
  console: { log: (line) => seen.logs.push(line) },
  GmailApp: {
    getUserLabelByName: (name) => (names.has(name) ? label(name) : null),
    createLabel: (name) => { names.add(name); seen.created.push(name); },
  },
  UrlFetchApp: { fetch },
  Utilities: {
    DigestAlgorithm: { SHA_256: 'SHA-256' },
    computeDigest: (algorithm, bytes) => world.digests[`${algorithm} ${bytes}`],
    base64Encode: (bytes) => world.base64[`${bytes}`],
  },
  PropertiesService: { getScriptProperties: () => ({ getProperty: (name) => world.properties[name] || null }) },
  LockService: {
    getScriptLock: () => ({
      tryLock: () => { seen.locked += 1; return !world.busy; },
      releaseLock: () => { seen.released += 1; },
    }),
  },
  ScriptApp: {
    getProjectTriggers: () => seen.triggers.map(trigger),
    deleteTrigger: (old) => seen.triggers.splice(seen.triggers.indexOf(old.getHandlerFunction()), 1),
    newTrigger: (handler) => ({
      timeBased: () => ({ everyMinutes: (minutes) => ({ create: () => seen.triggers.push(`${handler}/${minutes}`) }) }),
    }),
  },
});
globalThis.Date = class extends Date { static now() { return clock; } };
})();
