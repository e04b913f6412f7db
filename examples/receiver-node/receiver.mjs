// A receiver that accepts each webhook once: Node alone, and a folder for the webhooks it has accepted.

import { createHash, createHmac, timingSafeEqual } from "node:crypto";
import { linkSync, mkdirSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";

// As at the other end. Several with commas: while a secret is changed, the old one and the new one are good.
const keys = process.env.WEBHOOK_SECRET.split(",").map((secret) =>
  Buffer.from(secret.replace(/^whsec_/, ""), "base64"),
);
const folder = process.env.TAKEN ?? "taken";
const TOLERANCE_S = 5 * 60;
const MOST_BYTES = 50 * 1024 * 1024;

mkdirSync(folder, { recursive: true });

function isSigned(headers, body) {
  const id = headers["webhook-id"] ?? "";
  const timestamp = headers["webhook-timestamp"] ?? "";
  if (!id || !/^[0-9]{1,11}$/.test(timestamp)) return false;
  if (Math.abs(Date.now() / 1000 - Number(timestamp)) > TOLERANCE_S) return false;
  // Signatures of versions that are unknown here are passed over.
  const given = (headers["webhook-signature"] ?? "").split(" ").filter((each) => each.startsWith("v1,"));
  return keys.some((key) => {
    const expected = createHmac("sha256", key).update(`${id}.${timestamp}.`).update(body).digest();
    return given.some((each) => {
      const signature = Buffer.from(each.slice(3), "base64");
      return signature.length === expected.length && timingSafeEqual(signature, expected);
    });
  });
}

// The email is written aside, and gets its place in one step. Where the place is taken, it came before.
function takeOnce(id, body) {
  const place = join(folder, `${createHash("sha256").update(id).digest("hex")}.json`);
  const draft = `${place}.${process.pid}.${Math.random()}`;
  writeFileSync(draft, body);
  try {
    linkSync(draft, place);
    return true;
  } catch (error) {
    if (error.code === "EEXIST") return false;
    throw error;
  } finally {
    rmSync(draft);
  }
}

function answer(response, status, body) {
  response.writeHead(status, { "Content-Type": "application/json" }).end(JSON.stringify(body));
}

createServer((request, response) => {
  const pieces = [];
  let length = 0;
  request.on("data", (piece) => {
    length += piece.length;
    if (length <= MOST_BYTES) pieces.push(piece);
  });
  request.on("end", () => {
    if (request.method !== "POST" || request.url !== "/hooks/mail") return answer(response, 404, {});
    if (length > MOST_BYTES) return answer(response, 413, {});
    const body = Buffer.concat(pieces);
    if (!isSigned(request.headers, body)) return answer(response, 401, {});
    const id = request.headers["webhook-id"];
    try {
      answer(response, 200, { id, is_new: takeOnce(id, body) });
    } catch (error) {
      console.error(error.message);
      answer(response, 503, {}); // it is sent again
    }
  });
}).listen(Number(process.env.PORT ?? 9000), "127.0.0.1");
