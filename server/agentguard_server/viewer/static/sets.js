// A filter applies as it is chosen; without script its button does the same.
for (const form of document.querySelectorAll("form[data-live]")) {
  form.addEventListener("change", (event) => {
    if (event.target instanceof HTMLSelectElement) form.requestSubmit();
  });
}
