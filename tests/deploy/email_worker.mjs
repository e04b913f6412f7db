// Runs deploy/cloudflare/worker.js as Cloudflare does: a message for each line of JSON on stdin, its outcome on stdout.
import { readFileSync } from 'node:fs';

const [, , path, url, token] = process.argv;
const source = readFileSync(path).toString('base64');
const { default: worker } = await import(`data:text/javascript;base64,${source}`);
for (const line of readFileSync(0, 'utf-8').trim().split('\n')) {
  const { from, to, raw } = JSON.parse(line);
  const bytes = Buffer.from(raw, 'base64');
  const outcome = { rejected: null, thrown: null };
  const message = {
    from,
    to,
    raw: new Blob([bytes]).stream(),
    rawSize: bytes.length,
    setReject: (reason) => { outcome.rejected = reason; },
  };
  try {
    await worker.email(message, { MAILONCE_URL: url, MAILONCE_TOKEN: token }, {});
  } catch (error) {
    outcome.thrown = error.message;
  }
  console.log(JSON.stringify(outcome));
}
