/**
 * A Cloudflare Email Worker that posts each email, as it is, to Mailonce.
 *
 * Variable MAILONCE_URL, such as https://mailonce.example.org; secret MAILONCE_TOKEN, the ingress token.
 * The sending server gets what Mailonce answers: accepted, refused for good, or an error after which it tries again.
 */
const REFUSED = [400, 413, 415, 422]; // for good: this email is never accepted

export default {
  async email(message, env) {
    const response = await fetch(`${env.MAILONCE_URL.replace(/\/+$/, '')}/api/ingress/mime`, {
      method: 'POST',
      headers: {
        Authorization: `Bearer ${env.MAILONCE_TOKEN}`,
        'Content-Type': 'message/rfc822',
        'X-Envelope-From': inBytes(`<${message.from}>`),
        'X-Envelope-To': inBytes(`<${message.to}>`),
      },
      body: await new Response(message.raw).arrayBuffer(),
      redirect: 'manual', // the page behind a redirect answers 200 and accepts no email
    });
    if (REFUSED.includes(response.status)) {
      message.setReject(`The message cannot be accepted (${response.status})`);
    } else if (response.status !== 200) {
      throw new Error(`Mailonce answered ${response.status}`); // the sending server tries again
    }
  },
};

/** A header of HTTP consists of bytes, and an address may have any letters: in UTF-8. */
function inBytes(text) {
  return String.fromCharCode(...new TextEncoder().encode(text));
}
