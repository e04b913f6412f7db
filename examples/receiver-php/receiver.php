<?php
// A receiver that accepts each webhook once: PHP alone, and a folder for the webhooks it has accepted.

declare(strict_types=1);

const TOLERANCE_S = 5 * 60;

// As at the other end. Several with commas: while a secret is changed, the old one and the new one are good.
$secrets = explode(',', (string) getenv('WEBHOOK_SECRET'));
$folder = getenv('TAKEN') ?: 'taken';

function answer(int $status, array $body = []): never
{
    http_response_code($status);
    header('Content-Type: application/json');
    exit(json_encode((object) $body));
}

function is_signed(array $secrets, string $id, string $timestamp, string $signatures, string $body): bool
{
    if ($id === '' || !preg_match('/^[0-9]{1,11}$/D', $timestamp) || abs(time() - (int) $timestamp) > TOLERANCE_S) {
        return false;
    }
    $is_signed = false;
    foreach ($secrets as $secret) {
        $key = base64_decode(preg_replace('/^whsec_/', '', $secret), true);
        if ($key === false || $key === '') {
            continue; // an empty key would be everybody's
        }
        $expected = 'v1,' . base64_encode(hash_hmac('sha256', "$id.$timestamp.$body", $key, true));
        foreach (explode(' ', $signatures) as $signature) { // those of other versions are equal to none
            $is_signed = hash_equals($expected, $signature) || $is_signed;
        }
    }
    return $is_signed;
}

// The email is written aside, and gets its place in one step. Where the place is taken, it came before.
function take_once(string $folder, string $id, string $body): bool
{
    $place = $folder . '/' . hash('sha256', $id) . '.json';
    $draft = tempnam($folder, 'draft');
    if ($draft === false || file_put_contents($draft, $body) !== strlen($body)) {
        throw new RuntimeException('it cannot be written');
    }
    $is_new = @link($draft, $place);
    unlink($draft);
    if (!$is_new && !file_exists($place)) {
        throw new RuntimeException('it cannot be written');
    }
    return $is_new;
}

if ($_SERVER['REQUEST_METHOD'] !== 'POST' || parse_url($_SERVER['REQUEST_URI'], PHP_URL_PATH) !== '/hooks/mail') {
    answer(404);
}
$body = (string) file_get_contents('php://input');
$id = $_SERVER['HTTP_WEBHOOK_ID'] ?? '';
$timestamp = $_SERVER['HTTP_WEBHOOK_TIMESTAMP'] ?? '';
if (!is_signed($secrets, $id, $timestamp, $_SERVER['HTTP_WEBHOOK_SIGNATURE'] ?? '', $body)) {
    answer(401);
}
try {
    if (!is_dir($folder)) {
        mkdir($folder, 0700, true);
    }
    answer(200, ['id' => $id, 'is_new' => take_once($folder, $id, $body)]);
} catch (RuntimeException $error) {
    error_log($error->getMessage());
    answer(503); // it is sent again
}
