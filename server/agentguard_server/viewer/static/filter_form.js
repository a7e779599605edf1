// Apply a filter when it is chosen; without scripts, the button of the form applies it.
for (const form of document.querySelectorAll("form[data-live]")) {
  form.addEventListener("change", (event) => {
    if (event.target instanceof HTMLSelectElement) form.requestSubmit();
  });
}
