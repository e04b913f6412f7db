/**
 * Pushes the messages under a Gmail label to Mailonce, and removes the label once Mailonce has them.
 *
 * Script properties (Project Settings): MAILONCE_URL, such as https://mailonce.example.org; MAILONCE_TOKEN, the ingress
 * token; MAILONCE_LABEL, if the label is not to be "mailonce"; MAILONCE_ATTACHMENTS_MB, if the contents of other than up
 * to 15 megabytes of each message's attachments are to be sent. Then run setup() once.
 *
 * Labels are on threads. When a new message brings the label back to a thread, its older messages are pushed again:
 * Mailonce knows them and answers 200.
 */

const EVERY_MINUTES = 5;
const THREADS_AT_A_TIME = 50;
const ATTACHMENTS_MB = 15; // in Base64, they fit into the 25 MB that Mailonce accepts by default
// Google stops a run after six minutes; the last request of a run may take one of them.
const RUN_LIMIT_MS = 4 * 60 * 1000;

/** Makes the label and the trigger. May be run again, after a change of properties for instance. */
function setup() {
  const settings = readSettings_();
  if (!GmailApp.getUserLabelByName(settings.label)) {
    GmailApp.createLabel(settings.label);
  }
  ScriptApp.getProjectTriggers()
    .filter((trigger) => trigger.getHandlerFunction() === 'pushLabelledMessages')
    .forEach((trigger) => ScriptApp.deleteTrigger(trigger));
  ScriptApp.newTrigger('pushLabelledMessages').timeBased().everyMinutes(EVERY_MINUTES).create();
}

/** What the trigger runs. One run at a time: another one leaves at once. */
function pushLabelledMessages() {
  const settings = readSettings_();
  const lock = LockService.getScriptLock();
  if (!lock.tryLock(0)) {
    console.log('another run is under way');
    return;
  }
  try {
    pushThreads_(settings, Date.now() + RUN_LIMIT_MS);
  } finally {
    lock.releaseLock();
  }
}

function readSettings_() {
  const properties = PropertiesService.getScriptProperties();
  const url = (properties.getProperty('MAILONCE_URL') || '').trim().replace(/\/+$/, '');
  const token = (properties.getProperty('MAILONCE_TOKEN') || '').trim();
  if (!/^https:\/\/[^\s?#]+$/.test(url)) {
    throw new Error('The script property MAILONCE_URL must be an address such as https://mailonce.example.org');
  }
  if (!token) {
    throw new Error('The script property MAILONCE_TOKEN must be the ingress token of Mailonce');
  }
  const label = properties.getProperty('MAILONCE_LABEL') || 'mailonce';
  const contentsMb = Number(properties.getProperty('MAILONCE_ATTACHMENTS_MB') || ATTACHMENTS_MB);
  if (!(contentsMb >= 0)) {
    throw new Error('The script property MAILONCE_ATTACHMENTS_MB must be a number of megabytes');
  }
  return { url, token, label, contentsMb };
}

/** A thread that keeps its label waits for the next run, and does not hold up those behind it. */
function pushThreads_(settings, stopAtMs) {
  const label = GmailApp.getUserLabelByName(settings.label);
  if (!label) {
    throw new Error(`There is no label "${settings.label}": run setup() once`);
  }
  let kept = 0;
  for (;;) {
    const threads = label.getThreads(kept, THREADS_AT_A_TIME);
    if (threads.length === 0) {
      return;
    }
    for (const thread of threads) {
      if (Date.now() >= stopAtMs) {
        console.log('out of time; the next run goes on');
        return;
      }
      if (!settleThread_(thread, label, settings, stopAtMs)) {
        kept += 1;
      }
    }
  }
}

/** Whether the label is off. */
function settleThread_(thread, label, settings, stopAtMs) {
  const messages = messagesOf_(thread);
  // Every message has its try, even after one that failed.
  const answers = messages.map((message) => Date.now() < stopAtMs && push_(message, settings));
  if (!answers.every((accepted) => accepted)) {
    return false;
  }
  thread.removeLabel(label);
  // What came into the thread meanwhile lost its label with it.
  thread.refresh();
  if (messagesOf_(thread).length > messages.length) {
    thread.addLabel(label);
    return false;
  }
  return true;
}

function messagesOf_(thread) {
  return thread.getMessages().filter((message) => !message.isDraft());
}

/** Whether Mailonce has it. Only 200 says so: anything else, and it is pushed again. */
function push_(message, settings) {
  try {
    const payload = payloadOf_(message, settings);
    const status = post_(payload, settings);
    console.log(`${message.getId()} ${status}`);
    if (status === 413 && payload.attachments.some((file) => file.content)) {
      return push_(message, { ...settings, contentsMb: 0 }); // too large for this Mailonce: without the contents
    }
    return status === 200;
  } catch (error) {
    // Its text is not logged: it may quote the request.
    console.log(`${message.getId()} could not be pushed: ${error.name}`);
    return false;
  }
}

function post_(payload, settings) {
  const options = {
    method: 'post',
    contentType: 'application/json',
    headers: { Authorization: `Bearer ${settings.token}` },
    payload: JSON.stringify(payload),
    muteHttpExceptions: true,
    followRedirects: false, // the page behind a redirect answers 200 and accepts no email
  };
  return UrlFetchApp.fetch(`${settings.url}/api/ingress/gmail`, options).getResponseCode();
}

/** The date of the message's own header, in UTC, never the time of this run; Gmail's where the header cannot be read. */
function dateOf_(message, headers) {
  const written = new Date(valueOf_(headers, 'date') || NaN);
  return (isNaN(written) ? message.getDate() : written).toISOString();
}

/** All headers in their order, each on one line. Gmail's own getHeader() needs their names, in their exact case. */
function headersOf_(message) {
  const raw = message.getRawContent();
  const end = raw.search(/\r?\n\r?\n/);
  const lines = (end < 0 ? raw : raw.slice(0, end)).replace(/\r?\n[ \t]+/g, ' ').split(/\r?\n/);
  const found = lines.map((line) => /^([^\s:]+)[ \t]*:(.*)$/.exec(line)).filter(Boolean);
  return found.map(([, name, value]) => [name, value.trim()]);
}

function valueOf_(headers, wanted) {
  return (headers.find(([name]) => name.toLowerCase() === wanted) || [])[1];
}

/** Attachments are described by name, size and digest, so that emails that differ in a file only are two emails. */
function attachmentsOf_(message, settings) {
  let leftBytes = settings.contentsMb * 1024 * 1024;
  const files = message.getAttachments({ includeInlineImages: false }).map((file) => [file, false]);
  files.push(...message.getAttachments({ includeAttachments: false }).map((file) => [file, true]));
  return files.map(([file, inline]) => {
    const bytes = file.getBytes();
    const described = { name: file.getName(), content_type: file.getContentType(), size: bytes.length, inline };
    if (bytes.length <= leftBytes) {
      leftBytes -= bytes.length;
      return { ...described, content: Utilities.base64Encode(bytes) };
    }
    const text = withLineFeeds_(bytes);
    const textSha256 = text === bytes ? undefined : sha256Of_(text);
    return { ...described, sha256: sha256Of_(bytes), text_sha256: textSha256 };
  });
}

/** A text with LF at the end of each line, as Mailonce compares texts: mail servers change line ends. Else the same. */
function withLineFeeds_(bytes) {
  if (bytes.length === 0 || bytes.slice(0, 8000).includes(0)) {
    return bytes;
  }
  const lines = bytes.filter((byte, place) => byte !== 13 || bytes[place + 1] !== 10);
  return lines[lines.length - 1] === 10 ? lines : lines.concat([10]);
}

function sha256Of_(bytes) {
  const digest = Utilities.computeDigest(Utilities.DigestAlgorithm.SHA_256, bytes);
  return digest.map((byte) => (byte & 0xff).toString(16).padStart(2, '0')).join('');
}

/** Reply-To, In-Reply-To, References, Delivered-To and all else that Mailonce reads is in the headers. */
function payloadOf_(message, settings) {
  const headers = headersOf_(message);
  return {
    subject: message.getSubject(),
    sender: message.getFrom(),
    date: dateOf_(message, headers),
    html: message.getBody(),
    plain: message.getPlainBody(),
    message_id: valueOf_(headers, 'message-id'),
    to: message.getTo(),
    cc: message.getCc(),
    headers,
    thread_id: message.getThread().getId(),
    attachments: attachmentsOf_(message, settings),
  };
}
